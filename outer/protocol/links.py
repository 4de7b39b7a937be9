"""The links of all learners: how each one's contributions travel, and which answers are early.

The syncer's requests ask it about a learner; it emits a fact for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outer.protocol.facts import LinkAdapted
from outer.protocol.link_estimate import LinkEstimate
from outer.protocol.link_ladder import AHEAD, Clock, LadderPlace, Rung, Uplinks
from outer.protocol.messages import Contribution

if TYPE_CHECKING:
    from outer.config import SyncConfig

EARLY = 0  # the attempt of a read that is asked for ahead of its syncer step
SHORT = 0.25  # of read_timeout_s: an answer that takes less is not of a slow link


class UnderWay(NamedTuple):
    """An answer that no syncer step need wait for. Until it comes, its learner is asked for nothing else."""

    syncer_step: int
    fragment: int
    until: float


class Linked(Protocol):
    """A learner, as far as its link goes."""

    name: str
    incarnation: int
    answers: LinkEstimate
    place: LadderPlace
    under_way: UnderWay | None
    owes: set[int]


class Links:
    """The links of one epoch. `emit` takes the facts. Times are seconds of the shell's monotonic clock."""

    def __init__(self, config: SyncConfig, uplinks: Uplinks, emit: Callable[[LinkAdapted], None]) -> None:
        self.uplinks = uplinks
        self._config, self._emit = config, emit
        self._ladder = uplinks.ladder(config.base_window) if config.adaptive else (Rung(),)
        self._early: dict[tuple[str, int], Contribution] = {}  # by learner and fragment: for a step yet to be read

    # -------------------------------------------------------------- how a learner is asked

    def rung(self, member: Linked) -> Rung:
        """How its contributions travel."""
        return self._ladder[min(member.place.rung, len(self._ladder) - 1)]

    def bytes(self, member: Linked, fragment: int) -> int:
        """Return the bytes of its contribution."""
        return self.uplinks.bytes(self.rung(member), fragment)

    def floor_s(self, room_s: float) -> float:
        """Return how long answers may take before a link is slow: `room_s`, at least a quarter of the deadline."""
        return max(room_s, SHORT * self._config.read_timeout_s)

    def may_ask(self, member: Linked, syncer_step: int, fragment: int) -> bool:
        """Whether it contributes to this syncer step, at which the fragment is due.

        With a longer H its fragments take turns, so that the link has the same to carry in every round.
        """
        return (syncer_step // self._config.round_steps + fragment) % self.rung(member).every == 0

    def spares(self, member: Linked, fragment: int, version: int) -> bool:
        """Whether it gets no notice of a version while its base is usable.

        What it owes, or will contribute in a later round, is on its base: it keeps that.
        """
        return fragment in member.owes or not self.may_ask(member, version, fragment)

    def lead(self, member: Linked, step_s: float) -> int:
        """How many syncer steps ahead it is asked; 0: when a step is read."""
        rung = self.rung(member)
        if rung.every == 1 or not step_s:
            return 0
        expected_s = member.answers.expected_s(self.uplinks.mean_bytes(rung))
        return min(self._config.round_steps - 1, 1 + int(AHEAD * expected_s / step_s))

    # -------------------------------------------------------------- answers that come ahead of their step

    def keep(self, contribution: Contribution) -> None:
        """An early answer is here."""
        self._early[contribution.learner, contribution.fragment] = contribution

    def holds(self, learner: str, fragment: int) -> bool:
        """Whether an early answer is here."""
        return (learner, fragment) in self._early

    @property
    def early(self) -> Collection[Contribution]:
        """The early answers that are here."""
        return self._early.values()

    def take(self, learner: str = "", fragment: int = -1) -> list[Contribution]:
        """The early answers of a learner, or for a fragment: they are not here any more."""
        found = [key for key in self._early if key[0] == learner or key[1] == fragment]
        return [self._early.pop(key) for key in found]

    # -------------------------------------------------------------- what is seen of a link

    def note(self, member: Linked, clock: Clock | None) -> None:
        """An answer was seen, or, without a clock, did not come: its link may go down the ladder, or up."""
        if len(self._ladder) == 1:
            return
        before = self.rung(member)
        if clock is None:
            reason = member.place.lose(self._ladder)
        else:
            reason = member.place.judge(self._ladder, lambda rung: self._expected_s(member, rung), clock)
        after = self.rung(member)
        if after == before:
            return
        here = member.answers
        self._emit(
            LinkAdapted(
                member.name,
                member.incarnation,
                before.codec or self._config.codec,
                before.every,
                after.codec or self._config.codec,
                after.every,
                here.latency_s,
                1.0 / here.byte_s if here.byte_s else None,
                reason,
            )
        )

    def _expected_s(self, member: Linked, rung: Rung) -> float:
        return member.answers.expected_s(self.uplinks.mean_bytes(rung))

    def row(self, member: Linked) -> dict[str, object]:
        """For status pages."""
        rung, here = self.rung(member), member.answers
        return {
            "codec": rung.codec or self._config.codec,
            "every": rung.every,
            "latency_s": here.latency_s if here.known else None,
            "bytes_s": 1.0 / here.byte_s if here.byte_s else None,
        }
