"""The links of all learners: how each one's contributions travel, what it has carried, and which answers are early.

The syncer's requests ask it about a learner; it emits a fact for each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outer.protocol.facts import LinkAdapted, LinkBudgeted, LinkCarried
from outer.protocol.links.adapting import AHEAD, Clock, Place, Rung, Uplinks
from outer.protocol.links.budget import SLOTS, LinkBudget
from outer.protocol.links.estimate import LinkEstimate
from outer.protocol.messages import Contribution

if TYPE_CHECKING:
    from outer.config import SyncConfig

EARLY = 0  # the attempt of a read that is asked for ahead of its syncer step
SHORT = 0.25  # of read_timeout_s: an answer that takes less is not of a slow link
PAUSED_S = 60.0
GB = 1e9


class UnderWay(NamedTuple):
    """An answer that no syncer step need wait for. Until it comes, its learner is asked for nothing else."""

    syncer_step: int
    fragment: int
    until: float
    missed_s: float  # what it counts as if it does not come: the deadline that it had


class Linked(Protocol):
    """A learner, as far as its link goes."""

    name: str
    incarnation: int
    answers: LinkEstimate
    place: Place
    under_way: UnderWay | None
    counted: int
    owes: set[int]


class Facts(Protocol):
    """Takes the facts: an EffectBuffer."""

    def emit(self, fact: LinkAdapted | LinkBudgeted) -> None: ...

    def append(self, record: LinkCarried) -> None: ...


class Links:
    """One epoch's. `out` takes the facts. Times are seconds of the shell's monotonic clock."""

    def __init__(
        self,
        config: SyncConfig,
        fragments: int,
        uplinks: Uplinks,
        out: Facts,
    ) -> None:
        self.uplinks = uplinks
        self._config, self._fragments, self._out = config, fragments, out
        self._ladder = uplinks.ladder(config.base_window) if config.has_ladder else (Rung(),)
        self._budgets: dict[str, LinkBudget] = {}  # by learner
        self._early: dict[tuple[str, int], Contribution] = {}  # by learner and fragment: for a step yet to be read
        self._ahead: dict[str, tuple[int, int]] = {}  # by learner: syncer step and fragment of the newest early read
        self._told: dict[tuple[str, int], int] = {}  # by learner and fragment: the newest version that was carried
        self._quarter_s = uplinks.day_s / SLOTS
        self._quarters = 0  # before this epoch
        self._began: float | None = None  # when budgets were first asked
        self._recording = True

    def restore(self, carried: Mapping[str, Mapping[int, int]]) -> None:
        """What earlier epochs have recorded: bytes by learner and quarter. The time between epochs counts as none."""
        self._quarters = 1 + max((quarter for each in carried.values() for quarter in each), default=-1)
        limit = self._config.link_budget_gb_per_day
        for learner, quarters in carried.items() if limit is not None else ():
            assert limit is not None
            self._budgets[learner] = LinkBudget(limit * GB, self._quarter_s)
            self._budgets[learner].restore(quarters)

    def end(self) -> None:
        """The run is over, or suspended: nothing is recorded any more."""
        self._recording = False

    # -------------------------------------------------------------- how a learner is asked

    def rung(self, member: Linked) -> Rung:
        """How its contributions travel."""
        return self._ladder[min(member.place.rung, len(self._ladder) - 1)]

    def bytes(self, member: Linked, fragment: int) -> int:
        """Of its contribution."""
        return self.uplinks.bytes(self.rung(member), fragment)

    def floor_s(self, room_s: float) -> float:
        """What answers may take before their link is slow: what is left of tau steps, and a quarter of the deadline."""
        return max(room_s, SHORT * self._config.read_timeout_s)

    def may_ask(self, member: Linked, syncer_step: int, fragment: int) -> bool:
        """Whether it contributes to this syncer step, at which the fragment is due."""
        return not self.paused(member.name) and self._is_its_round(member, syncer_step, fragment)

    def _is_its_round(self, member: Linked, syncer_step: int, fragment: int) -> bool:
        """With a longer H its fragments take turns, so that the link has the same to carry in every round."""
        return (syncer_step // self._config.round_steps + fragment) % self.rung(member).every == 0

    @property
    def paused_s(self) -> float:
        """How long a quorum waits at a time for room in the budgets of its links, which may take hours."""
        return min(PAUSED_S, self._quarter_s)

    def paused(self, learner: str) -> bool:
        """Whether its budget is used up."""
        budget = self._budgets.get(learner)
        return budget is not None and budget.state == "paused"

    def spares(self, member: Linked, fragment: int, version: int, behind: int) -> bool:
        """Whether it gets no notice of a version, `behind` rounds newer than what it has; -1: it has none.

        What it owes, or will contribute in a later round, is on its base: it keeps that within the base window.
        """
        if self.paused(member.name):
            return behind >= 0
        if not 0 <= behind <= self._config.base_window:
            return False
        return fragment in member.owes or not self._is_its_round(member, version, fragment)

    def lead(self, member: Linked, step_s: float) -> int:
        """How many syncer steps ahead it is asked; 0: when a step is read."""
        rung = self.rung(member)
        if rung.every == 1 or not step_s:
            return 0
        expected_s = member.answers.expected_s(self.uplinks.mean_bytes(rung))
        return min(self._config.round_steps - 1, 1 + int(AHEAD * expected_s / step_s))

    # -------------------------------------------------------------- answers that come ahead of their step

    def expect(self, member: Linked, under_way: UnderWay) -> None:
        """An early read is sent."""
        member.under_way = under_way
        self._ahead[member.name] = under_way[:2]

    def keep(self, contribution: Contribution) -> None:
        """An early answer is here."""
        self._early[contribution.learner, contribution.fragment] = contribution

    def holds(self, learner: str, fragment: int) -> bool:
        """Whether an early answer is here."""
        return (learner, fragment) in self._early

    def take(self, syncer_step: int, fragment: int, learners: Iterable[Linked]) -> list[Contribution]:
        """The early answers for a step that is read now. What came of others for this fragment is forgotten."""
        for learner in [learner for learner, read in self._ahead.items() if read[0] <= syncer_step]:
            del self._ahead[learner]
        known = {member.name: member.incarnation for member in learners}
        found = [each for (_, index), each in self._early.items() if index == fragment]
        for each in found:
            del self._early[each.learner, fragment]
        return [each for each in found if known.get(each.learner) == each.incarnation]

    def forget(self, learner: str) -> None:
        """Its incarnation is over."""
        self._ahead.pop(learner, None)
        self._told = {place: version for place, version in self._told.items() if place[0] != learner}
        for key in [key for key in self._early if key[0] == learner]:
            del self._early[key]

    @property
    def early_reads(self) -> set[tuple[int, int]]:
        """Syncer step and attempt of each early read whose answer may still merge."""
        kept = {(each.syncer_step, each.attempt) for each in self._early.values()}
        return kept | {(syncer_step, EARLY) for syncer_step, _ in self._ahead.values()}

    # -------------------------------------------------------------- what is seen of a link

    def note(self, member: Linked, clock: Clock) -> None:
        """An answer was seen, or did not come: its link may go down the ladder, or up."""
        if len(self._ladder) == 1:
            return
        budget = self._budgets.get(member.name)
        floor = len(self.uplinks.codecs) - 1 if budget is not None and budget.state in ("reduced", "paused") else 0
        before = self.rung(member)
        reason = ""
        if self._config.adaptive:
            reason = member.place.judge(self._ladder, lambda rung: self._expected_s(member, rung), clock, floor)
        if member.place.rung < floor or not self._config.adaptive:
            member.place.rung = floor
        if budget is not None and not reason:
            reason = f"{budget.used / GB:.3g} of {budget.bytes_a_day / GB:.3g} GB of this day are used"
        after = self.rung(member)
        if after == before:
            return
        here = member.answers
        self._out.emit(
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

    def carry(self, now: float, member: Linked, size: int) -> None:
        """Its link carries so many bytes, of a contribution or a version."""
        limit = self._config.link_budget_gb_per_day
        if limit is not None:
            budget = self._budgets.setdefault(member.name, LinkBudget(limit * GB, self._quarter_s))
            for quarter, carried in budget.add(self._served(now), size):
                if self._recording:
                    self._out.append(LinkCarried(member.name, quarter, carried))
            self.check(now, member)

    def _served(self, now: float) -> float:
        """The middle of this quarter, in seconds that syncers have served this run; earlier epochs' are whole."""
        self._began = now if self._began is None else self._began
        return (self._quarters + (now - self._began) // self._quarter_s + 0.5) * self._quarter_s

    def carry_version(self, now: float, member: Linked, fragment: int, version: int) -> None:
        """It gets a notice of a version, and fetches that once."""
        if self._told.get((member.name, fragment), -1) < version:
            self._told[member.name, fragment] = version
            self.carry(now, member, self.uplinks.down[fragment])

    def check(self, now: float, member: Linked) -> None:
        """Time has passed: its budget may have room again."""
        budget = self._budgets.get(member.name)
        if budget is not None and budget.judge(self._served(now)):
            self._out.emit(
                LinkBudgeted(member.name, member.incarnation, budget.state, budget.used, round(budget.bytes_a_day))
            )

    def row(self, member: Linked) -> dict[str, object]:
        """For status pages."""
        rung, budget = self.rung(member), self._budgets.get(member.name)
        here = member.answers
        return {
            "codec": rung.codec or self._config.codec,
            "every": rung.every,
            "latency_s": here.latency_s if here.known else None,
            "bytes_s": 1.0 / here.byte_s if here.byte_s else None,
            "budget": budget.state if budget else "",
        }
