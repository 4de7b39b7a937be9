"""Each checker passes a true history and fails one with its bug planted; without evidence it says unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from learners.protocol.facts import Adopted, StepFinished
from orchestrator.analysis.checks import check
from orchestrator.eventlog.events import Event, Unknown
from orchestrator.eventlog.facts import Evaluated, RunFinished
from orchestrator.eventlog.tables import LogPart
from outer.protocol.facts import (
    Committed,
    Finished,
    LearnerAttached,
    LearnerFenced,
    LinkAdapted,
    Participant,
    SetAside,
    SpanGranted,
    SpanReturned,
    StepOpened,
    SyncerStarted,
)
from tests.orchestrator.analysis.test_invariants import BROKEN, EIGHT, changed, dropped, participant
from tests.orchestrator.histories import (
    BASE,
    altered,
    history,
    inserted,
    is_a,
    losing,
    parts,
    renumbered,
    script,
    verdict,
    without,
)  # fmt: skip

Log = list[Event]


def statuses(log: Log | Iterable[LogPart]) -> dict[str, str]:
    return {each.name: each.status for each in check(log)}


def commit(events: Log, syncer_step: int) -> Committed:
    return next(event.fact for event in events if is_a(Committed, syncer_step=syncer_step)(event))


def participants(events: Log, change: Callable[[tuple[Participant, ...]], tuple[Participant, ...]]) -> Log:
    """The log with the participants of the commit at step 8 changed."""
    return altered(events, EIGHT, participants=change(commit(events, 8).participants))


def moved(events: Log, which: Callable[[Event], bool], before: Callable[[Event], bool]) -> Log:
    """The log with a fact said earlier by its writer: the two trade places in number and time."""
    early, late = (next(e for e in events if test(e)) for test in (before, which))
    swap = {early.key: replace(early, fact=late.fact), late.key: replace(late, fact=early.fact)}
    return [swap.get(event.key, event) for event in events]


def epoch_two(events: Log, at_or_after: int, until: int) -> Log:
    """The log with some commits made by a second epoch."""
    second: Log = []
    for event in events:
        if is_a(Committed)(event) and at_or_after <= event.fact.syncer_step < until:
            second.append(replace(event, incarnation=2, sequence=len(second), fact=replace(event.fact, epoch=2)))
    return [*without(events, lambda e: any(e.at == s.at and is_a(Committed)(e) for s in second)), *second]


def older_incarnation(events: Log) -> Log:
    """c 1 merges again after c 2 has."""
    last = commit(events, 32).participants
    c = replace(last[2], incarnation=1, base_step=9, step=10, steps=1)
    return altered(events, is_a(Committed, syncer_step=32), participants=(*last[:2], c))


ADAPTED = LinkAdapted("a", 1, "fp32", "int8", 0.1, 1e6, "3 answers in a row took about 4 s, 1 s fit")
BACK = replace(ADAPTED, codec_before="int8", codec="fp32")
GRANT = SpanGranted("a", 1, 90, 900, 916)


def followed(which: Callable[[Event], bool], *facts: object) -> Callable[[Log], Log]:
    return lambda events: inserted(events, which, *facts)


def again(kind: type) -> Callable[[Log], Log]:
    """The first fact of this kind is said twice."""
    return lambda events: inserted(events, is_a(kind), next(e.fact for e in events if is_a(kind)(e)))


PLANTED: list[tuple[str, str, Callable[[Log], Log]]] = [
    ("log.sequence", "a lost fact", lambda e: [x for x in e if x.key != ("b", 1, 7)]),
    ("log.sequence", "a lost beginning", lambda e: [x for x in e if x.key != ("b", 1, 0)]),
    ("log.sequence", "a number used twice", lambda e: [*e, replace(e[0], fact=RunFinished("failed", ""))]),
    ("log.ending", "a run without its end", dropped(is_a(RunFinished))),
    ("log.ending", "a run that ends twice", followed(is_a(RunFinished), RunFinished("stopped", ""))),
    ("log.ending", "finished short of the budget", dropped(is_a(Finished))),
    ("books.balance", "a step said twice", again(StepFinished)),
    ("books.committed", "a miscounted commit", changed(EIGHT, tokens_committed=1)),
    ("books.committed", "a miscounted end", changed(is_a(Finished), tokens_committed=1)),
    ("books.committed", "a step that was never said", dropped(is_a(StepFinished, step=5))),
    ("books.loans", "a span lent twice", followed(EIGHT, GRANT, replace(GRANT, learner="b", span=91))),
    ("books.loans", "spans that overlap", followed(EIGHT, GRANT, replace(GRANT, span=91, start=915))),
    ("books.loans", "a span returned twice", again(SpanReturned)),
    ("books.loans", "a return beyond the grant", changed(is_a(SpanReturned), stop=10**6)),
    (
        "books.loans",
        "samples of committed steps returned",
        followed(is_a(SpanGranted, span=7), SpanReturned("a", 1, 0, 0, 16)),
    ),
    ("books.loans", "a return by another", changed(is_a(SpanReturned), learner="b")),
    ("books.positions", "a sample outside the span", changed(is_a(StepFinished), position=10**6)),
    ("books.positions", "someone else's span", changed(is_a(SpanGranted, learner="b"), learner="a")),
    ("books.positions", "a batch read twice", changed(is_a(StepFinished, step=5), position=3)),
    ("versions.chain", "a commit onto an old version", changed(EIGHT, base_version=0)),
    ("versions.chain", "a round left out", dropped(EIGHT)),
    ("versions.chain", "a round cut short", changed(EIGHT, syncer_step=7)),
    ("versions.order", "commits out of order", lambda e: moved(e, is_a(Committed, syncer_step=10), EIGHT)),
    ("versions.order", "the wrong fragment", changed(EIGHT, fragment=1)),
    ("versions.adopted", "a version nobody made", changed(is_a(Adopted, version=8), version=9)),
    ("versions.adopted", "another fragment's version", changed(is_a(Adopted, version=8), version=10)),
    ("versions.adopted", "a version back", changed(is_a(Adopted, version=8), version=0)),
    ("merges.once", "a doubled contribution", lambda e: participants(e, lambda all_: (*all_, all_[0]))),
    ("merges.ranges", "steps merged twice", participant(base_step=2, steps=6, tokens=48)),
    ("merges.weights", "weights above one", participant(weight=0.9)),
    (
        "merges.weights",
        "equal weights",
        lambda e: participants(e, lambda all_: tuple(replace(x, weight=1 / len(all_)) for x in all_)),
    ),
    ("merges.weights", "a weight that is no number", participant(weight=math.nan)),
    ("merges.weights", "a contribution of nothing", participant(steps=0)),
    ("merges.quorum", "a commit below K", lambda e: participants(e, lambda all_: (replace(all_[0], weight=1.0),))),
    ("merges.quorum", "K copies of one", lambda e: participants(e, lambda all_: (all_[0], all_[0]))),
    ("merges.live", "fewer than took part", changed(EIGHT, live=2)),
    ("merges.live", "more than ever came", changed(EIGHT, live=4)),
    ("merges.live", "fewer than none", changed(EIGHT, live=-4)),
    ("merges.counters", "a step too many", participant(steps=4)),
    ("merges.counters", "tokens too many", participant(tokens=25)),
    ("merges.counters", "a step not yet finished", participant(step=60, steps=55)),
    ("merges.current", "a stale base", dropped(is_a(Adopted, version=4))),
    ("merges.current", "a joiner without a base", dropped(is_a(Adopted, version=0))),
    ("merges.current", "counted from before the adoption", participant(base_step=3, steps=5)),
    ("merges.closed", "a commit after the end", lambda e: moved(e, is_a(Finished), EIGHT)),
    ("merges.closed", "a step never opened", dropped(is_a(StepOpened, syncer_step=8))),
    ("fencing.epochs", "an old epoch that goes on", lambda e: epoch_two(e, 16, 20)),
    ("fencing.epochs", "a foreign epoch", changed(EIGHT, epoch=3)),
    ("fencing.epochs", "an epoch granted twice", again(SyncerStarted)),
    ("fencing.incarnations", "an old incarnation merges", older_incarnation),
    ("fencing.incarnations", "an old incarnation attaches", changed(is_a(LearnerAttached), incarnation=3)),
    ("fencing.incarnations", "one that never attached", dropped(is_a(LearnerAttached, learner="b"))),
    ("fencing.fences", "merging after the fence", followed(EIGHT, LearnerFenced("b", 1, "failed"))),
    (
        "fencing.fences",
        "attaching after the fence",
        followed(is_a(LearnerFenced, learner="c"), LearnerAttached("c", 1, 10)),
    ),
    ("links.formats", "a format that no link was at", participant(codec="int8")),
    ("links.formats", "another format", lambda e: inserted(participant(codec="fp4")(e), is_a(StepOpened), ADAPTED)),
    ("links.changes", "a change told twice", followed(is_a(StepOpened), ADAPTED, ADAPTED)),
    ("links.changes", "a change without a reason", followed(is_a(StepOpened), replace(ADAPTED, reason=""))),
    ("finite.commits", "a norm that is no number", changed(EIGHT, norm=math.nan)),
    ("finite.commits", "an infinite norm", changed(EIGHT, norm=math.inf)),
    ("finite.commits", "a diverged evaluation", changed(is_a(Evaluated, syncer_step=32), loss=math.inf)),
]


def test_a_true_history_passes_every_checker() -> None:
    for absent in ((), ((4, "a"), (6, "a"), (8, "a")), ((18, "c"), (20, "b"))):
        assert {verdict.name: verdict.reason for verdict in check(history(absent)) if not verdict.stands} == {}


@pytest.mark.parametrize(("name", "bug", "plant"), PLANTED, ids=[f"{name}: {bug}" for name, bug, _ in PLANTED])
def test_a_planted_bug_is_found(name: str, bug: str, plant: Callable[[Log], Log]) -> None:
    assert verdict(parts(plant(history()), 10_000 if name.startswith("log.") else 40), name).status == "violated"


def weighed(rule: str, weight: Callable[[Participant], float]) -> str:
    """What merges.weights says of a history by this rule, whose contributions are weighed like this."""

    def again(event: Event) -> Event:
        if not isinstance(event.fact, Committed):
            return event
        raw = [weight(one) for one in event.fact.participants]
        parts = [replace(p, weight=r / sum(raw)) for p, r in zip(event.fact.participants, raw, strict=True)]
        return replace(event, fact=replace(event.fact, participants=tuple(parts)))

    log = [again(event) for event in altered(history(), is_a(SyncerStarted), weights=rule)]
    return verdict(log, "merges.weights").status


def test_weights_are_judged_by_the_rule_that_the_epoch_names() -> None:
    rules: dict[str, Callable[[Participant], float]] = {
        "paper": lambda p: p.tokens**2 / p.steps,
        "tokens": lambda p: p.tokens,
        "equal": lambda p: 1.0,
    }
    for name in rules:
        for other, weight in rules.items():
            assert weighed(name, weight) == ("pass" if name == other else "violated"), (name, other)


def test_a_log_says_the_same_however_it_is_cut() -> None:
    assert check(parts(history(), 40)) == check(history())


def test_every_check_has_a_bug_planted_against_it() -> None:
    assert {name for name, _, _ in [*PLANTED, *BROKEN]} == set(statuses(history()))


def test_an_empty_history_is_unknown_throughout_and_of_a_running_one_the_end() -> None:
    assert set(statuses([]).values()) == {"unknown"}
    running = statuses(script().events)
    assert running.pop("log.ending") == "unknown"
    assert set(running.values()) == {"pass", "idle"}


def test_what_no_query_can_compute_with_is_unknown_and_what_this_version_does_not_know_is_left_out() -> None:
    huge = statuses(altered(history(), is_a(StepFinished), tokens=2**63 - 1))
    assert huge["books.balance"] == "unknown" and huge["fencing.epochs"] == "pass"
    strange = Event("syncer", 1, 0, BASE + 40.0, Unknown("Newer", {"learner": "a", "incarnation": 10**30}))
    assert statuses(renumbered([*history(), strange])) == statuses(history())


def test_a_contribution_received_before_a_fence_may_merge_after_it() -> None:
    events = inserted(history(), is_a(StepOpened, syncer_step=32), LearnerFenced("b", 1, "failed"))
    assert verdict(events, "fencing.fences").status == "pass"


def test_a_contribution_may_have_the_format_of_its_link_or_that_before() -> None:
    for codec in ("", "int8"):
        events = inserted(participant(codec=codec)(history()), is_a(StepOpened, syncer_step=8), ADAPTED, BACK)
        assert {name: statuses(events)[name] for name in ("links.formats", "links.changes")} == {
            "links.formats": "pass",
            "links.changes": "pass",
        }


def test_rebased_counters_may_begin_before_the_adoption() -> None:
    rebased = [
        replace(e, fact=replace(e.fact, mode="rebase")) if is_a(Adopted)(e) and e.fact.version else e for e in history()
    ]
    assert verdict(rebased, "merges.current").status == "pass"
    earlier = participant(base_step=3, steps=5)
    assert verdict(earlier(rebased), "merges.current").status == "pass"
    assert verdict(earlier(history()), "merges.current").status == "violated"


def test_samples_that_are_set_aside_are_lent_no_more() -> None:
    [back] = [event.fact for event in history() if is_a(SpanReturned)(event)]
    aside = SetAside(back.learner, back.incarnation, back.span, back.start, back.start + 4)
    events = altered(inserted(history(), is_a(SpanReturned), aside), is_a(SpanReturned), start=aside.stop)
    assert verdict(events, "books.loans").status == "pass"
    again = replace(GRANT, span=91, start=aside.start, stop=aside.stop)
    assert verdict(inserted(events, is_a(Finished), again), "books.loans").status == "violated"
    assert verdict(altered(events, is_a(SetAside), learner="b"), "books.loans").status == "violated"


# ------------------------------------------------------------------ facts that are lost


@pytest.mark.parametrize("size", [1, 30, 10_000])
def test_facts_that_the_log_says_are_lost_break_no_check(size: int) -> None:
    """Once or twice; both losses may be in one block. Replay and time are then unknown."""
    once = losing(history(), "b", range(5, 10))
    for events in (once, losing(once, "b", range(12, 15)), losing(history(), "b", range(28, 33))):
        found = statuses(parts(events, size))
        unknown = {name: status for name, status in found.items() if status not in ("pass", "idle")}
        assert unknown == dict.fromkeys(("accounted.time", "replayable.steps"), "unknown")


def test_facts_that_nobody_says_are_lost_do_and_lost_facts_excuse_no_wrong_count() -> None:
    """What is known of a contribution's steps must not exceed what it counts."""
    found = statuses(parts(losing(history(), "b", range(5, 10), told=False)))
    broken = {name for name, status in found.items() if status == "violated"}
    assert broken >= {"versions.clocks", "merges.counters", "books.committed", "replayable.steps"}
    tenth = is_a(StepFinished, step=10)
    grown = altered(losing(history(), "b", range(5, 10)), lambda e: e.writer == "b" and tenth(e), tokens=800)
    assert verdict(parts(grown), "merges.counters").status == "violated"
