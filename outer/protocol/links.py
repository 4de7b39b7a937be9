"""The links of all learners: how each one's contributions travel, and which answers are early.

The syncer's requests ask it about a learner; it emits a fact for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outer.protocol.facts import LinkAdapted
from outer.protocol.link_estimate import LinkEstimate, LinkWindow
from outer.protocol.link_ladder import LadderPlace, Uplinks
from outer.protocol.messages import Contribution

if TYPE_CHECKING:
    from outer.config import SyncConfig

EARLY = 0  # the attempt of a read that is asked for ahead of its syncer step
SHORT = 0.25  # of read_timeout_s: an answer that takes less is not of a slow link
AHEAD = 1.5  # an answer that is asked for ahead may take so many times what is expected


class UnderWay(NamedTuple):
    """An answer that no syncer step need wait for. Until it comes, its fragment is not asked for again."""

    syncer_step: int
    attempt: int
    beside: int  # others, as it was asked for; of one that was waited for 1 at least: open steps read at once
    until: float


class Linked(Protocol):
    """A learner, as far as its link goes."""

    name: str
    incarnation: int
    answers: LinkEstimate
    place: LadderPlace
    window: LinkWindow
    overdue: bool
    pace_s: float


class Links:
    """The links of one epoch. `emit` takes the facts. Times are seconds of the shell's monotonic clock."""

    def __init__(self, config: SyncConfig, uplinks: Uplinks, emit: Callable[[LinkAdapted], None]) -> None:
        self.uplinks = uplinks
        self._config, self._emit = config, emit
        self._early: dict[tuple[str, int], Contribution] = {}  # by learner and fragment: for a step yet to be read

    # -------------------------------------------------------------- how a learner is asked

    def codec(self, member: Linked) -> str:
        """How its contributions travel; "": in the run's codec."""
        return self.uplinks.codecs[member.place.rung]

    def expected_s(self, member: Linked, fragment: int) -> float:
        """Return the seconds that its answer should take; 0 while nothing is known."""
        return member.answers.expected_s(self.uplinks.bytes(self.codec(member), fragment))

    def patience_s(self, room_s: float) -> float:
        """Return how long answers are waited for beyond a quorum: `room_s`, at least a quarter of the deadline."""
        return max(room_s, SHORT * self._config.read_timeout_s)

    def lead(self, member: Linked, fragment: int, step_s: float, room_s: float) -> range:
        """How many syncer steps ahead it is asked; empty: when a step is read, and has `room_s` for answers.

        It is asked ahead if its answers do not come while others are waited for: by their time, or as the last one did
        not, which may be for its own step's sake.
        """
        expected_s, round_steps = self.expected_s(member, fragment), self._config.round_steps
        if member.overdue:
            expected_s += member.pace_s
        slow = member.overdue or expected_s > self.patience_s(room_s)
        if not (slow and step_s and self._config.hurries):
            return range(0)
        least = int(min(member.window.least_s, expected_s) / step_s)
        return range(max(1, min(least, round_steps - 1)), min(round_steps, 2 + int(AHEAD * expected_s / step_s)))

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
        codecs = self.uplinks.codecs
        if len(codecs) == 1:
            return
        before = self.codec(member)
        if round_s is None:
            reason = member.place.lose(codecs)
        else:
            fit_s = self.patience_s(round_s / 8)
            reason = member.place.judge(codecs, partial(self._mean_s, member), fit_s)
        after = self.codec(member)
        if after == before:
            return
        here = member.answers
        self._emit(
            LinkAdapted(
                member.name,
                member.incarnation,
                before or self._config.codec,
                after or self._config.codec,
                here.latency_s,
                1.0 / here.byte_s if here.byte_s else None,
                reason,
            )
        )

    def _mean_s(self, member: Linked, codec: str) -> float:
        return member.answers.expected_s(self.uplinks.mean_bytes(codec))

    def row(self, member: Linked) -> dict[str, object]:
        """For status pages."""
        here = member.answers
        return {
            "codec": self.codec(member) or self._config.codec,
            "latency_s": here.latency_s if here.known else None,
            "bytes_s": 1.0 / here.byte_s if here.byte_s else None,
        }
