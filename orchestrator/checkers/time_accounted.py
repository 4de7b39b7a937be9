"""time.* (I12): every second of every learner has one category, and almost none is unexplained.

The accounts use the wall clocks of several processes. Where these contradict causal order or a learner's own count of
seconds, the check is unknown; also where the log lacks a learner's request or its last facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.accounting.books import settle
from orchestrator.accounting.goodput import BLUR_S, account, wanted_within
from orchestrator.accounting.history import History
from orchestrator.accounting.verdicts import Verdict, judge

UNEXPLAINED_MAX = 0.01  # of the learners' time,
UNEXPLAINED_S = 0.25  # or so many seconds of each, whichever is more


def check(history: History) -> list[Verdict]:
    name = "accounted.time"
    claim = f"the categories of time sum to the whole, and at most {UNEXPLAINED_MAX:.0%} of it is unexplained"
    if not history.commits or any(
        incarnation.requested is None for incarnation in history.incarnations.values() if incarnation.steps
    ):
        return [Verdict(name, claim, "unknown", "the log does not tell when every learner was asked for")]
    if told := next(_contradictions(history), None):
        return [Verdict(name, claim, "unknown", told)]
    goodput = account(history, settle(history))
    if goodput is None:
        return [Verdict(name, claim, "unknown", "the log has no step before a commit")]
    failures: list[str] = []
    wanted = wanted_within(history)
    for learner, seconds in goodput.seconds.items():
        total = math.fsum(seconds.values())
        if not abs(total - wanted[learner]) <= 1e-6 * max(1.0, wanted[learner]) or min(seconds.values()) < 0.0:
            failures.append(f"the categories of {learner} sum to {total:.6f} s of {wanted[learner]:.6f} s")
    most = max(UNEXPLAINED_MAX * math.fsum(wanted.values()), UNEXPLAINED_S * len(wanted))
    unexplained = math.fsum(seconds["unattributed"] for seconds in goodput.seconds.values())
    silent = dict(_cut_off(history, goodput.stop))
    if unexplained > most >= unexplained - math.fsum(silent.values()):
        told = f"the last words of {', '.join(silent)} are not in the log"
        return [Verdict(name, claim, "unknown", told)]
    if unexplained > most:
        worst = max(goodput.seconds, key=lambda learner: goodput.seconds[learner]["unattributed"])
        failures.append(f"{unexplained:.2f} s are unexplained, most of them of {worst}; allowed are {most:.2f} s")
    return [judge(name, claim, len(wanted), "learners", failures)]


def _cut_off(history: History, end: float) -> Iterator[tuple[str, float]]:
    """Learners without a recorded end that nobody had noticed when the run ended: (name, seconds)."""
    newest = {
        incarnation.learner: incarnation
        for incarnation in sorted(history.incarnations.values(), key=lambda incarnation: incarnation.number)
    }
    for learner, incarnation in newest.items():
        if (
            history.ended
            and incarnation.over in ("", "stopped")
            and incarnation.entered("stopped") is None
            and incarnation.steps
        ):
            silent_s = end - incarnation.steps[-1].at
            if silent_s > BLUR_S:
                yield learner, silent_s


def _contradictions(history: History) -> Iterator[str]:
    """Clocks that contradict causality: a step ends before it is merged, a version is adopted after it was made.

    A commit that only a later epoch recorded is left out: its time is unknown.
    """
    own = (said for said in history.commits if said.incarnation == said.fact.epoch)
    made = {(said.fact.fragment, said.fact.syncer_step): said.at for said in own}
    for incarnation in history.incarnations.values():
        name = f"{incarnation.learner} {incarnation.number}"
        before = None
        for said in incarnation.steps:
            if before is not None and any(before < at <= said.at for at in incarnation.resumed):
                before = None  # in between there was nothing of it
            if before is not None and abs(said.at - before - said.fact.seconds - said.fact.waited_s) > BLUR_S:
                yield f"the wall clock of {name} jumped before its step {said.fact.step}"
            before = said.at
        for adopted in incarnation.adoptions:
            fact = adopted.fact
            if adopted.at < made.get((fact.fragment, fact.version), -math.inf) - BLUR_S:
                yield f"{name} adopted version {fact.version} before it was made: wall clocks differ"
    for merged, one, incarnation, _, last in history.contributions:
        if last and incarnation.steps[last - 1].at > merged.at + BLUR_S:
            name = f"{incarnation.learner} {incarnation.number}"
            yield f"{name} finished step {one.step} after it was merged: wall clocks differ"
