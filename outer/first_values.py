"""Saves the fragments and values that the epoch that starts a run makes from its task, for the epochs that follow.

    initial/000001/layout    the fragments, the task's merge rules, and what status pages need to know of the task
    initial/000001/0007      the initial value of fragment 7, if it had no commit then

Making it anew imports the task and computes the parameters; reading it takes milliseconds, and needs no JAX. The layout
is written last: without it there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Objects
from outer.protocol.fragments import Fragment, Tensor

FOLDER, LAYOUT = "initial", "layout"

# (fragments, float32[n] for each that is wanted, merge rules by path pattern, what status pages need of the task)
FirstValues = tuple[tuple[Fragment, ...], Sequence[NDArray[np.float32] | None], Mapping[str, str], Mapping[str, Any]]
Make = Callable[[Callable[[int], bool]], FirstValues]  # given which fragments are wanted


class ModelLayout(NamedTuple):
    """A model's fragments and the task's settings, without values."""

    fragments: tuple[Fragment, ...]
    patterns: Mapping[str, str]  # the task's merge rules
    task: Mapping[str, Any]  # what status pages need to know of the task


def save(store: Objects, epoch: int, thetas: Mapping[int, NDArray[np.float32]]) -> None:
    """Save initial values, by fragment, that have no commit. Raises OSError."""
    for fragment, theta in thetas.items():
        content, _ = pack({"epoch": epoch, "fragment": fragment}, [theta])
        store.create(_key(epoch, f"{fragment:04d}"), content)


def finish(store: Objects, epoch: int, made: ModelLayout) -> None:
    """Save the layout, behind all values, and remove what starts before this one have saved. Raises OSError."""
    fragments, patterns, task = made
    layout = [[asdict(tensor) for tensor in fragment.tensors] for fragment in fragments]
    header = {"epoch": epoch, "layout": layout, "patterns": dict(patterns), "task": dict(task)}
    store.create(_key(epoch, LAYOUT), pack(header, [])[0])
    for earlier in store.folders(FOLDER):
        if earlier < f"{epoch:06d}":
            for name in store.names(f"{FOLDER}/{earlier}"):
                store.remove(name)


def load(store: Objects, epoch: int, uncommitted: Collection[int]) -> FirstValues | None:
    """Load what `epoch` has saved, with zeros for fragments that have a commit; None where any of it cannot be read."""
    try:
        header, _, _ = unpack(store.read(_key(epoch, LAYOUT)))
        fragments = tuple(Fragment(index, _tensors(each)) for index, each in enumerate(header["layout"]))
        thetas = [
            _theta(store, epoch, fragment) if fragment.index in uncommitted else np.zeros(fragment.size, np.float32)
            for fragment in fragments
        ]
        return fragments, thetas, header["patterns"], header["task"]
    except (OSError, Damaged, KeyError, TypeError):
        return None


def _tensors(described: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(**{**each, "shape": tuple(each["shape"])}) for each in described)


def _theta(store: Objects, epoch: int, fragment: Fragment) -> NDArray[np.float32]:
    header, arrays, _ = unpack(store.read(_key(epoch, f"{fragment.index:04d}")))
    if header["fragment"] != fragment.index or [each.shape for each in arrays] != [(fragment.size,)]:
        raise Damaged(f"it is no value of fragment {fragment.index}")
    return arrays[0]


def _key(epoch: int, name: str) -> str:
    return f"{FOLDER}/{epoch:06d}/{name}"
