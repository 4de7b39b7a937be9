"""merges.* (I3, counted once): what went into a commit, how often, and with what weight; and finite.commits (I7).

A contribution's counters must be those of its learner's own facts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise

from learners.protocol.facts import Adopted
from orchestrator.accounting.history import OVERWRITING, History
from orchestrator.accounting.incarnations import Said
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.facts import Evaluated
from outer.protocol.facts import Committed, Finished, LearnerAttached, Participant, StepOpened, SyncerStarted

TOLERANCE = 1e-9  # of a weight


def check(history: History) -> list[Verdict]:
    return [
        _once(history),
        _ranges(history),
        _weights(history),
        _quorum(history),
        _live(history),
        _counters(history),
        _current(history),
        _closed(history),
    ]


def _name(said: Said[Committed], one: Participant) -> str:
    return f"{one.learner} {one.incarnation} in fragment {said.fact.fragment} at syncer step {said.fact.syncer_step}"


def _once(history: History) -> Verdict:
    failures: list[str] = []
    for said in history.commits:
        names = [one.learner for one in said.fact.participants]
        if len({*names}) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            failures.append(f"{name} merged {names.count(name)} times at syncer step {said.fact.syncer_step}")
    claim = "a learner merges at most once into a commit"
    return judge("merges.once", claim, len(history.contributions), "contributions", failures)


def _ranges(history: History) -> Verdict:
    ranges: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for said, one, *_ in history.contributions:
        ranges[(one.learner, one.incarnation, said.fact.fragment)].append((one.base_step, one.step))
    failures = [
        f"steps {after[0] + 1} to {before[1]} of {learner} {incarnation} merged twice into fragment {fragment}"
        for (learner, incarnation, fragment), merged in ranges.items()
        for before, after in pairwise(sorted(merged))
        if after[0] < before[1]
    ]
    claim = "no step merges twice into the same fragment"
    return judge("merges.ranges", claim, len(history.contributions), "contributions", failures)


def _weights(history: History) -> Verdict:
    """Paper, section 3: a contribution weighs tokens^2 / steps, normalised over the commit."""
    failures: list[str] = []
    for said in history.commits:
        participants, name = said.fact.participants, f"the weights at syncer step {said.fact.syncer_step}"
        if any(one.steps < 1 or one.tokens < 1 for one in participants):
            failures.append(f"{name} include a contribution without steps or tokens")
            continue
        raw = [one.tokens * one.tokens / one.steps for one in participants]
        given, total = math.fsum([one.weight for one in participants]), math.fsum(raw)
        if not abs(given - 1.0) <= TOLERANCE:
            failures.append(f"{name} sum to {given!r}")
        for one, due in zip(participants, raw, strict=True):
            if not abs(one.weight - due / total) <= TOLERANCE:
                failures.append(f"{name}: {one.learner} has {one.weight!r}, due is {due / total!r}")
    claim = "weights are tokens^2 / steps, normalised"
    return judge("merges.weights", claim, len(history.commits), "commits", failures)


def _quorum(history: History) -> Verdict:
    quorums = {said.incarnation: said.fact.quorum for said in history.of(SyncerStarted)}
    judged = [said for said in history.commits if said.incarnation in quorums]
    failures = [
        f"syncer step {said.fact.syncer_step} committed with {len(said.fact.participants)} participants, "
        f"the quorum is {quorums[said.incarnation]}"
        for said in judged
        if len({one.learner for one in said.fact.participants}) < quorums[said.incarnation]
    ]
    return judge("merges.quorum", "nothing commits below the quorum", len(judged), "commits with rules", failures)


def _live(history: History) -> Verdict:
    """A live learner has attached before; a participant is live when it is read."""
    attached: set[str] = set()
    failures: list[str] = []
    for said in history.by_syncer(LearnerAttached, Committed):
        if isinstance(said.fact, LearnerAttached):
            attached.add(said.fact.learner)
        elif not len(said.fact.participants) <= said.fact.live <= len(attached):
            failures.append(
                f"syncer step {said.fact.syncer_step} tells of {said.fact.live} live learners, "
                f"{len(said.fact.participants)} took part and {len(attached)} had ever attached"
            )
    claim = "as many learners were live as took part, at least, and no more than had attached"
    return judge("merges.live", claim, len(history.commits), "commits", failures)


def _counters(history: History) -> Verdict:
    failures: list[str] = []
    for said, one, incarnation, first, last in history.contributions:
        count, total = last - first, incarnation.tokens[last] - incarnation.tokens[first]
        if one.steps != count or one.tokens != total or one.steps != one.step - one.base_step:
            failures.append(
                f"{_name(said, one)} counts {one.steps} steps and {one.tokens} tokens in "
                f"({one.base_step}, {one.step}], the learner said {count} and {total}"
            )
    claim = "a contribution's counters are the steps that its learner finished in its range"
    return judge("merges.counters", claim, len(history.contributions), "contributions", failures)


def _current(history: History) -> Verdict:
    """The newest adoption before the last step read is of the version merged onto, and counting began there.

    An adoption at the boundary of the read came after the read. With rebase, counting may have begun earlier: what
    accrued since the read, or since the older base, is kept; and a learner that no longer steps may be read again
    after it has rebased.
    """
    failures: list[str] = []
    for said, one, incarnation, _, _ in history.contributions:
        adopted = incarnation.adopted.get(said.fact.fragment, [])
        before = bisect_left(adopted, one.step, key=_after_step)
        if (later := _rebased(adopted[before:], one, said.fact.base_version)) is not None:
            base = later
        elif before == 0:
            failures.append(f"{_name(said, one)} had adopted no version before step {one.step}")
            continue
        else:
            base = adopted[before - 1]
        zeroed = base.mode in OVERWRITING
        if base.version != said.fact.base_version:
            failures.append(f"{_name(said, one)} was based on version {base.version}, not {said.fact.base_version}")
        elif one.base_step > base.after_step or (zeroed and one.base_step != base.after_step):
            failures.append(f"{_name(said, one)} counts from {one.base_step}, its base came after {base.after_step}")
    claim = "only contributions based on the fragment's current version merge, counted from its adoption"
    return judge("merges.current", claim, len(history.contributions), "contributions", failures)


def _rebased(adopted: list[Adopted], one: Participant, version: int) -> Adopted | None:
    """The adoption of this version at the boundary of the read, if it kept the accrued steps."""
    for fact in adopted:
        if fact.after_step != one.step:
            return None
        if fact.version == version and fact.mode not in OVERWRITING:
            return fact
    return None


def _after_step(adopted: Adopted) -> int:
    return adopted.after_step


def _closed(history: History) -> Verdict:
    """A step opens before it commits, and once the budget is reached nothing commits."""
    opened: set[int] = set()
    finished: int | None = None
    failures: list[str] = []
    for said in history.by_syncer(StepOpened, Committed, Finished):
        fact = said.fact
        if isinstance(fact, StepOpened):
            opened.add(fact.syncer_step)
        elif isinstance(fact, Finished):
            finished = fact.syncer_step
        elif finished is not None:
            failures.append(f"syncer step {fact.syncer_step} committed after the end at step {finished}")
        elif fact.syncer_step not in opened:
            failures.append(f"syncer step {fact.syncer_step} committed without having been opened")
    claim = "a syncer step commits after it was opened, and none after the end"
    return judge("merges.closed", claim, len(history.commits), "commits", failures)


def check_finite(history: History) -> list[Verdict]:
    """I7: nothing that is not a number reaches the global parameters. A learner's own loss may diverge: its
    contributions are then refused. The norm of a merged update has no bound.
    """
    failures: list[str] = []
    for said in history.commits:
        fact = said.fact
        numbers = [("norm", fact.norm), *(("weight of " + one.learner, one.weight) for one in fact.participants)]
        failures += [
            f"syncer step {fact.syncer_step}: the {name} is {number}"
            for name, number in numbers
            if not 0.0 <= number < math.inf
        ]
    failures += [
        f"the held-out loss at syncer step {said.fact.syncer_step} is {said.fact.loss}"
        for said in history.of(Evaluated)
        if not math.isfinite(said.fact.loss)
    ]
    claim = "norms (of whatever size), weights and held-out losses are finite, norms and weights not negative"
    return [judge("finite.commits", claim, len(history.commits), "commits", failures)]
