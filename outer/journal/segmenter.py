"""The port by which the chain's groups become segments of the log; orchestrator/eventlog implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outer.journal.chain import Link
from outer.journal.groups import Group

SEGMENT_ROWS, SEGMENT_GROUPS = 65_536, 4_096  # a segment is made once as many facts, or groups, wait for it
SEGMENT_BYTES, SEGMENT_ROUNDS = 2**30, 2  # or once their groups hold as much: both so many bytes and rounds of values


@dataclass(frozen=True)
class Segmented:
    """How far the log is in segments, as the last one says."""

    segments: int = 0
    seal: str = ""
    run: str = ""  # identity of the chain whose groups it covers
    last: int = -1  # position of the last of them
    group: str = ""  # and its seal
    rows: int = 0  # facts in all segments
    writers: tuple[tuple[str, int, int], ...] = ()  # as Recorder.state

    def link(self, run: str) -> Link:
        """Behind which group of this chain the next segment begins."""
        return Link(self.last, self.group) if run == self.run else Link()


class Segmenter(Protocol):
    """Raises OSError; then call it again."""

    def newest(self, known: Segmented) -> Segmented:
        """The last segment in the store; `known` is one that is there."""
        ...

    def write(self, run: str, groups: Iterable[Group], known: Segmented, damage: Sequence[str]) -> Segmented:
        """Make the next segment of the first of these groups, or find that another process has made it.

        `damage`: what could not be read among them, known once they are read.
        """
        ...
