"""Saves the whole state of a lock-step run between two units of time, and restores it in another process.

Everything is pickled but what a fresh LockStep of the same arguments has too: the task, compiled programs and the
machines' tables of handlers. Only classes of this project, arrays and plain containers are loaded.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any

from learners.fragment_io import FragmentIO
from learners.lockstep import LockStep
from learners.training import state_arrays
from learners.training.trainer import Trainer

_LOCK, _METHOD = type(threading.Lock()), type(LockStep.run.__get__(0))
_PACKAGES = ("learners", "outer", "orchestrator", "numpy", "ml_dtypes", "optax", "collections")
_FUNCTIONS = (
    "_reconstruct",
    "scalar",
    "_frombuffer",
    "_reconstruct_array",
    "_lock",
    "_bound",
)  # make arrays, and as below
_BUILTINS = ("set", "frozenset", "complex", "bytearray")
_TABLE = "_handlers"  # of a machine: functions of its own


def pack(shell: LockStep, beside: Any = None) -> bytes:
    """The run's state as bytes, and a value beside it. Call it before `begin` or after `advance`."""
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.kept = _kept(shell)
    machines = [{key: value for key, value in vars(each).items() if key != _TABLE} for each in _machines(shell)]
    trainers = [state_arrays.pack(each.trainer.state_leaves()) for each in shell._units.values()]
    units = {name: vars(each) for name, each in shell._units.items()}
    rest = {key: value for key, value in vars(shell).items() if key not in ("_units", "_stepper", "_task")}
    pickler.dump((machines, trainers, units, rest, beside))
    return file.getvalue()


def restore(shell: LockStep, content: bytes) -> Any:
    """Give a fresh LockStep, of the arguments of the one that was packed, its state; returns what was beside it.

    Raises ValueError for damage, or for a state of other arguments.
    """
    unpickler = _Unpickler(io.BytesIO(content))
    unpickler.kept = {place: thing for thing, place in _kept(shell).values()}
    try:
        machines, trainers, units, rest, beside = unpickler.load()
        for machine, state in zip(_machines(shell), machines, strict=True):
            vars(machine).update(state)
        for each, arrays in zip(shell._units.values(), trainers, strict=True):
            each.trainer.inherit(state_arrays.unpack(arrays, each.trainer.state_leaves()))
        for name, state in units.items():
            vars(shell._units[name]).update(state)
        vars(shell).update(rest)
        return beside
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, LookupError, TypeError) as error:
        raise ValueError(f"the saved state cannot be loaded: {error!r}") from error


def _machines(shell: LockStep) -> list[Any]:
    return [shell._syncer, *(each.machine for each in shell._units.values())]


def _kept(shell: LockStep) -> dict[int, tuple[Any, str]]:
    """What a fresh shell has too, by identity, with its place."""
    kept = {"syncer": shell._syncer, "task": shell._task, "optimizer": shell.parameters._optimizer}
    for name, each in shell._units.items():
        kept |= {f"machine {name}": each.machine, f"trainer {name}": each.trainer}
        kept[f"slot {name}"] = each.fragment_io._slot  # of checkpoints and joiners: empty here
    return {id(thing): (thing, place) for place, thing in kept.items()}


class _Pickler(pickle.Pickler):
    kept: dict[int, tuple[Any, str]]

    def persistent_id(self, thing: Any) -> str | None:
        found = self.kept.get(id(thing))
        assert found is not None or not isinstance(thing, Trainer)
        return None if found is None else found[1]

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, _METHOD):
            return _bound, (thing.__self__, thing.__name__)
        return (_lock, ()) if isinstance(thing, _LOCK) else NotImplemented


def _lock() -> Any:
    return threading.Lock()


def _bound(owner: Any, name: str) -> Any:
    """A method that a value holds."""
    if not isinstance(owner, FragmentIO):
        raise pickle.UnpicklingError(f"no method of {type(owner).__name__} is in a state")
    return getattr(owner, name)


class _Unpickler(pickle.Unpickler):
    kept: dict[str, Any]

    def persistent_load(self, place: Any) -> Any:
        return self.kept[place]

    def find_class(self, module: str, name: str) -> Any:
        """Classes of known packages, and functions that only make an array."""
        known = module.partition(".")[0]
        if (known in (*_PACKAGES, "jax") and "." not in name) or (known == "builtins" and name in _BUILTINS):
            found: Any = super().find_class(module, name)
            if isinstance(found, type) or name in _FUNCTIONS:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is in no state that this version saves")
