"""Saves the whole state of a lock-step run between two units of time, and restores it in another process.

Not saved is what a fresh LockStep of the same arguments has too: the task, compiled programs, configurations, and the
machines' tables of handlers.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import learners.protocol
import outer.protocol
from learners import fragment_io, lockstep
from learners.fragment_io import OnDevices
from learners.lockstep import LockStep
from learners.training import state_arrays
from outer.journal.saving import dump, load, saved_all, saved_as

_TABLE = "_handlers"  # of a machine: methods of its own

for _package in (learners.protocol, outer.protocol):
    found = pkgutil.walk_packages(_package.__path__, f"{_package.__name__}.")
    saved_all(*(importlib.import_module(each.name) for each in found))
saved_all(fragment_io, lockstep)
saved_as(OnDevices, OnDevices.host, lambda value: OnDevices(value, lambda held: held))


def pack(shell: LockStep, beside: Any = None) -> bytes:
    """The run's state as bytes, and a value beside it. Call it before `begin` or after `advance`."""
    trainers = [state_arrays.pack(each.trainer.state_leaves()) for each in shell._units.values()]
    parameters = [(version, shell.parameters.arrays(index)) for index, version in enumerate(shell.parameters.versions)]
    machines = [{key: value for key, value in vars(each).items() if key != _TABLE} for each in _machines(shell)]
    return dump((vars(shell), machines, trainers, parameters, beside), _kept(shell))


def restore(shell: LockStep, content: bytes) -> Any:
    """Give a fresh LockStep, of the arguments of the one that was packed, its state; returns what was beside it.

    Raises ValueError for damage, or for a state of other arguments.
    """
    state, machines, trainers, parameters, beside = load(content, _kept(shell))
    for machine, attributes in zip(_machines(shell), machines, strict=True):
        vars(machine).update(attributes)
    for each, arrays in zip(shell._units.values(), trainers, strict=True):
        each.trainer.inherit(state_arrays.unpack(arrays, each.trainer.state_leaves()))
    for index, (version, arrays) in enumerate(parameters):
        shell.parameters.restore(index, version, arrays)
    vars(shell).update(state)
    return beside


def _machines(shell: LockStep) -> list[Any]:
    return [shell._syncer, *(each.machine for each in shell._units.values())]


def _kept(shell: LockStep) -> dict[str, Any]:
    """What a fresh shell has too, by its place."""
    kept = {name: vars(shell)[f"_{name}"] for name in ("syncer", "sync", "task", "stepper")}
    kept |= {"parameters": shell.parameters, "emit": shell._syncer._links._emit}
    for name, each in shell._units.items():
        held = each.fragment_io
        kept |= {f"machine {name}": each.machine, f"trainer {name}": each.trainer}
        kept |= {f"slot {name}": held._slot, f"lock {name}": held._lock}  # the slot is empty here
    return kept
