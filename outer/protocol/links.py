"""The links of all learners: how each one's contributions travel, and which answers are early.

The syncer's requests ask it about a learner; it emits a fact for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outer.protocol.facts import LinkAdapted
from outer.protocol.link_estimate import LinkEstimate
from outer.protocol.link_ladder import AFTER, AHEAD, LadderPlace, Rung, Uplinks
from outer.protocol.messages import Contribution, FragmentCounters

if TYPE_CHECKING:
    from outer.config import SyncConfig

EARLY = 0  # the attempt of a read that is asked for ahead of its syncer step
SHORT = 0.25  # of read_timeout_s: an answer that takes less is not of a slow link


class UnderWay(NamedTuple):
    """An answer that no syncer step need wait for. Until it comes, its fragment is not asked for again."""

    syncer_step: int
    attempt: int
    until: float


class Linked(Protocol):
    """A learner, as far as its link goes."""

    name: str
    incarnation: int
    answers: LinkEstimate
    place: LadderPlace
    under_way: dict[int, UnderWay]
    overdue: bool
    stale: int
    merged_step: dict[int, int]
    owes: set[int]


class Links:
    """The links of one epoch. `emit` takes the facts. Times are seconds of the shell's monotonic clock."""

    def __init__(self, config: SyncConfig, uplinks: Uplinks, emit: Callable[[LinkAdapted], None]) -> None:
        self.uplinks = uplinks
        self._config, self._emit = config, emit
        self._ladder = uplinks.ladder() if config.hurries else (Rung(),)
        self.spare = False  # whether a quorum has enough learners without those whose H is longer
        self._early: dict[tuple[str, int], Contribution] = {}  # by learner and fragment: for a step yet to be read

    # -------------------------------------------------------------- how a learner is asked

    def rung(self, member: Linked) -> Rung:
        """How its contributions travel."""
        return self._ladder[min(member.place.rung, len(self._ladder) - 1)]

    def bytes(self, member: Linked, fragment: int) -> int:
        """Return the bytes of its contribution."""
        return self.uplinks.bytes(self.rung(member), fragment)

    def patience_s(self, room_s: float) -> float:
        """Return how long answers are waited for beyond a quorum: `room_s`, at least a quarter of the deadline."""
        return max(room_s, SHORT * self._config.read_timeout_s)

    def may_ask(self, member: Linked, syncer_step: int, fragment: int) -> bool:
        """Whether it contributes to this syncer step, at which the fragment is due.

        With a longer H its fragments take turns, so that the link has the same to carry in every round.
        """
        return (syncer_step // self._config.round_steps + fragment) % self.rung(member).every == 0

    def spares(self, member: Linked, fragment: int, version: int, usable: bool) -> bool:
        """Whether it gets no notice of a version. `usable`: its base still is.

        What it owes, or will contribute in a later round, is on a usable base: it keeps that. Any other it gets when
        it can contribute on it.
        """
        if usable:
            return fragment in member.owes or not self.may_ask(member, version, fragment)
        later = (version + (1 + behind) * self._config.round_steps for behind in range(self._config.base_window + 1))
        return self.spare and not any(self.may_ask(member, step, fragment) for step in later)

    def lead(self, member: Linked, fragment: int, step_s: float, room_s: float) -> int:
        """How many syncer steps ahead it is asked; 0: when a step is read, and has `room_s` for answers.

        It is asked ahead if its answers do not come while others are waited for: by their time, or as the last one did
        not, or as it contributes in some rounds only.
        """
        expected_s = member.answers.expected_s(self.bytes(member, fragment))
        slow = member.overdue or self.rung(member).every > 1 or expected_s > self.patience_s(room_s)
        if not (slow and step_s and self._config.hurries):
            return 0
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

    def note(self, member: Linked, round_s: float | None) -> None:
        """An answer was seen, or, without `round_s`, did not come: its link may go down the ladder, or up."""
        if len(self._ladder) > 1:
            before = self.rung(member)
            if round_s is None:
                reason = member.place.lose(self._ladder, len(member.under_way))
            else:
                expected_s = partial(self._expected_s, member)
                reason = member.place.judge(self._ladder, expected_s, round_s, len(member.under_way))
            self._moved(member, before, reason)

    def note_bases(
        self,
        member: Linked,
        before: Sequence[FragmentCounters],
        counters: Sequence[FragmentCounters],
        versions: Sequence[int],
    ) -> None:
        """Its newest report has these counters, the one before it those: a base that is out of date came too late."""
        for held, holds, version in zip(before, counters, versions, strict=False):
            if holds.base_version is not None and held.base_version != holds.base_version:
                behind = version - holds.base_version > self._config.base_window * self._config.round_steps
                member.stale = member.stale + 1 if behind else max(min(0, member.stale), member.stale - 1)
        if member.stale >= AFTER and len(self._ladder) > 1:
            rung, reason = self.rung(member), member.place.starve(self._ladder, len(member.under_way))
            member.stale = -2 * len(versions)  # those that are on their way, and that wait behind them
            self._moved(member, rung, reason)

    def _moved(self, member: Linked, before: Rung, reason: str) -> None:
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
