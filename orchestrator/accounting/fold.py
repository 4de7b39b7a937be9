"""A fold: something computed from the log's blocks, in order, in memory that does not grow with the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from orchestrator.eventlog.block import Block, block_of
from orchestrator.eventlog.events import Event


class Fold(Protocol):
    """Takes the log's blocks one after the other; however the log is cut into blocks, the result is the same.

    Folds may share another fold: `drive` gets that one before them.
    """

    def take(self, block: Block) -> None: ...


def drive(folds: Iterable[Fold], blocks: Iterable[Block]) -> None:
    """Give every block to every fold, in the order of `folds`."""
    folds = tuple(folds)
    for block in blocks:
        for fold in folds:
            fold.take(block)


def as_blocks(log: Iterable[Event] | Iterable[Block]) -> Iterator[Block]:
    """Blocks as they are, and events as one block."""
    things: list[Any] = []
    for thing in log:
        if isinstance(thing, Block):
            yield thing
        else:
            things.append(thing)
    if things:
        yield block_of(things)
