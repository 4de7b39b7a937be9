"""One open syncer step: where it stands, and what it has gathered so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outer.facts import Committed
from outer.messages import Contribution
from outer.signals import Merged


class Stage(Enum):
    """Where an open syncer step stands."""

    COLLECTING = "collecting"  # fewer than K reports since it opened
    GRACE = "grace"  # K reported, more are waited for
    READING = "reading"  # participants were asked for the fragment
    MERGING = "merging"  # the shell computes
    MERGED = "merged"  # waits until every earlier step is committed
    JOURNALING = "journaling"  # the shell makes it durable


TRANSITIONS: dict[Stage, tuple[Stage, ...]] = {
    Stage.COLLECTING: (Stage.GRACE, Stage.READING),
    Stage.GRACE: (Stage.READING, Stage.COLLECTING),
    Stage.READING: (Stage.MERGING, Stage.COLLECTING),
    Stage.MERGING: (Stage.MERGED, Stage.COLLECTING),
    Stage.MERGED: (Stage.JOURNALING,),
    Stage.JOURNALING: (),
}


@dataclass
class OpenStep:
    """One open syncer step."""

    syncer_step: int
    fragment: int | None
    opened_at: float
    stage: Stage = Stage.COLLECTING
    reported: set[str] = field(default_factory=set)
    quorum_at: float | None = None
    grace_s: float | None = 0.0
    reason: str = ""
    decided_at: float = 0.0
    live: int = 0
    deadline: float = 0.0
    attempt: int = 0  # how often participants were asked
    retry_at: float = float("-inf")  # not judged again before
    starved: bool = False  # fewer than K were alive at some time since it opened
    awaited: dict[str, int] = field(default_factory=dict)  # learner -> incarnation
    contributions: dict[str, Contribution] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    result: Merged | None = None
    record: Committed | None = None

    @property
    def waits(self) -> bool:
        """Whether it was reopened and is to be judged again at `retry_at`."""
        return self.retry_at > float("-inf")

    @property
    def chosen(self) -> list[Contribution]:
        """What is merged, in the order of the learners' names: the sum is the same bits every time."""
        return [self.contributions[name] for name in sorted(self.contributions)]

    def move(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage
