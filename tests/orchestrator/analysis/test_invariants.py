"""Each invariant family passes a true history and tells, in words, what is wrong with one that breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from learners.protocol.facts import Adopted, Donated, PhaseEntered, StateReceived, StateSaved, StepFinished
from orchestrator.analysis.checks import check
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.verdicts import sound
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    FaultInjected,
    LearnerLost,
    LearnerRequested,
    RunFinished,
    RunResumed,
    SyncerLost,
)
from outer.protocol.facts import (
    Committed,
    DrainStarted,
    FactsLost,
    Finished,
    LearnerAttached,
    LearnerFenced,
    Participant,
    ReadFailed,
    Refused,
    SpanGranted,
    SpanReturned,
    StepOpened,
    StepReopened,
    StoreWaited,
    SyncerStarted,
)
from tests.orchestrator.histories import (
    BASE,
    END,
    ROUND,
    SIZES,
    Script,
    accounts_of,
    altered,
    history,
    inserted,
    is_a,
    renumbered,
    restarted,
    settle,
    verdict,
    without,
)

Log = list[Event]
Plant = Callable[[Log], Log]
EIGHT = is_a(Committed, syncer_step=8)
NEVER_RESTARTED = {"durable.restarts", "durable.records"}
NOBODY_REFUSED = {"closed.refusals", "closed.strangers"}
NO_SLOW_LINK = {"links.formats", "links.changes"}


def idle(events: Log) -> set[str]:
    verdicts = check(events)
    assert [v for v in verdicts if not v.stands] == []
    return {v.name for v in verdicts if v.status == "idle"}


# ------------------------------------------------------------------ histories


def steady(commits_until: int, seconds: int = 80, *troubles: object) -> Log:
    """Two learners that step once a second, both needed; after some time nothing commits."""
    run = Script()
    tensors = (("w/0",), ("w/1",))
    paper = (2.0, 3.0, 0.0, "journal", 0, "paper", "fp32")
    run.say(-1.0, SyncerStarted(1, tensors, SIZES, ("a", "b"), 2, ROUND, 1, (0, 0), 0, *paper))
    for name in ("a", "b"):
        run.join(-0.5, name, 1)
    for second in range(1, seconds + 1):
        for name in ("a", "b"):
            run.step(float(second), name)
        if second <= commits_until:
            run.sync(second, ("a", "b"))
        if second == commits_until:
            for fact in troubles:
                run.say(second + 0.4, fact, "orchestrator" if isinstance(fact, SyncerLost) else "syncer")
    run.say(seconds + 0.5, Finished(commits_until, run.tokens_committed, "stopped"))
    return run.events


def slowed(events: Log, **seconds: float) -> Log:
    """Learners whose steps take so long by their own account after c has died."""
    return [
        replace(e, fact=replace(e.fact, seconds=seconds[e.writer]))
        if is_a(StepFinished)(e) and e.at > BASE + 10.6 and e.writer in seconds
        else e
        for e in events
    ]


def from_peer(gave: str = "cafe", got: str = "cafe", step: int = 15) -> Log:
    """The second life of c starts from a copy of a's state."""
    received = StateReceived("peer", "a", 1, 15, got, 99, 0.4)
    events = inserted(history(), lambda e: e.writer == "c" and e.incarnation == 2 and is_a(PhaseEntered)(e), received)
    if not gave:
        return events
    return inserted(
        events, lambda e: is_a(StepFinished, step=15)(e) and e.writer == "a", Donated("c", 2, step, gave, 99)
    )


def beheaded(events: Log, steps: int) -> Log:
    """The second life of c without its beginning: as if it had adopted everything after these steps."""
    c = [e for e in events if (e.writer, e.incarnation) == ("c", 2)]
    cut = {e.key for e in c if is_a(StepFinished)(e) and e.fact.step <= steps}
    cut |= {e.key for e in c if is_a(Adopted)(e) and 0 < e.fact.after_step < steps}
    kept = [e for e in events if e.key not in cut]
    moved = {e.key for e in c if is_a(Adopted, after_step=0)(e)}
    return renumbered([replace(e, fact=replace(e.fact, after_step=steps)) if e.key in moved else e for e in kept])


def participant(**change: object) -> Plant:
    def plant(events: Log) -> Log:
        all_: tuple[Participant, ...] = next(e.fact for e in events if EIGHT(e)).participants
        return altered(events, EIGHT, participants=(replace(all_[0], **change), *all_[1:]))

    return plant


def changed(which: Callable[[Event], bool], **change: object) -> Plant:
    return lambda events: altered(events, which, **change)


def dropped(which: Callable[[Event], bool]) -> Plant:
    return lambda events: without(events, which)


def epoch_two(which: Callable[[Event], bool], **change: object) -> Plant:
    """The syncer died, and its next epoch says the first such fact otherwise."""
    return lambda events: altered(restarted(events), lambda e: e.incarnation == 2 and which(e), **change)


def said(*facts: object) -> Plant:
    """The syncer says these after the commit at step 8."""
    return lambda events: inserted(events, EIGHT, *facts)


REFUSED = Refused("d", 1, "attach", "wrong_config", detail="sync.H: here 4, there 8")
GRANTS = [SpanGranted("a", 1, 90 + n, 1000 * n, 1000 * n + 16) for n in range(1, 4)]
UNREAD = ReadFailed("a", 1, 8, 0, "timeout")
REOPENED = StepReopened(8, 0, 1, "too few")
LATE = Refused("a", 1, "contribution", "late", 8, 0)
AFTER_FENCE = [LearnerFenced("a", 1, "failed"), SpanGranted("a", 1, 90, 900, 916)]

STARTED = is_a(SyncerStarted)
BROKEN: list[tuple[str, str, Plant]] = [
    ("durable.restarts", "epoch 2 starts from version 12 of fragment 0", epoch_two(STARTED, versions=(12, 18))),
    ("durable.restarts", "from version 20 of fragment 0, version 16 was", epoch_two(STARTED, versions=(20, 18))),
    ("durable.restarts", "epoch 2 starts from 1 committed tokens", epoch_two(STARTED, tokens_committed=1)),
    ("durable.records", "epoch 2 says the commit of syncer step 18 otherwise", lambda e: restarted(e, norm=2.0)),
    ("durable.records", "otherwise than epoch 1", epoch_two(is_a(SpanGranted), stop=10**6)),
    ("versions.clocks", "b 1 adopted after step 5", lambda e: without(e, lambda x: step_of(x, "b", 5))),
    ("versions.clocks", "opened syncer step 9 after 7", lambda e: without(e, is_a(StepOpened, syncer_step=8))),
    ("versions.clocks", "tokens falls", lambda e: altered(e, EIGHT, tokens_committed=10**6)),
    ("versions.clocks", "adopted after step 0", lambda e: altered(e, is_a(Adopted, version=8), after_step=0)),
    ("versions.clocks", "was read at step 8 after step 90", lambda e: altered_step(e, 4, 90)),
    ("versions.clocks", "the run finished at syncer step 3", lambda e: altered(e, is_a(Finished), syncer_step=3)),
    ("fencing.epochs", "committed as epoch 1 by epoch 2", epoch_two(is_a(Committed, epoch=2), epoch=1)),
    ("fencing.fences", "granted after it was fenced", lambda e: using(said(*AFTER_FENCE)(e), 90)),
    ("live.rate", "fragment 0 had no commit for", lambda e: steady(6)),
    ("live.rate", "fragment 0 had no commit for 80.0 s after the start", lambda e: steady(0)),
    ("live.recovery", "fragment 0 had no commit for", lambda e: steady(6, 80, UNREAD)),
    ("isolation.steps", "when c 1 was lost, the median step", lambda e: slowed(e, a=4.0, b=4.0)),
    ("replayable.steps", "step 5 of b 1 is in a commit", lambda e: without(e, lambda x: step_of(x, "b", 5))),
    ("replayable.states", "stepped before it had fragment 0 ", dropped(is_a(Adopted, fragment=0, version=0))),
    ("replayable.states", "c 2 started from digest cafe of a 1, which gave dead", lambda e: from_peer("dead")),
    ("replayable.states", "started from step 15 of a 1, which gave 14", lambda e: from_peer(step=14)),
    (
        "replayable.states",
        "started from versions (12, 14) of a 1, which gave (4, 6)",
        lambda e: altered(altered(from_peer(), is_a(StateReceived), versions=(12, 14)), is_a(Donated), versions=(4, 6)),
    ),
    ("replayable.steps", "step 1 of b 1 is in a commit", lambda e: without(e, lambda x: step_of(x, "b", 1))),
    ("replayable.steps", "step 1 of c 2 is in a commit", lambda e: beheaded(from_peer(), 3)),
    ("replayable.digests", "the contribution of a 1 at syncer step 8 has no digest", participant(digest="")),
    ("replayable.digests", "the commit of syncer step 8 has no digest", lambda e: altered(e, EIGHT, digest="")),
    ("bounded.steps", "4 steps are open", said(*(StepOpened(9 + n, None) for n in range(4)))),
    ("bounded.spans", "a 1 was lent 48 samples", said(*GRANTS)),
    ("bounded.reads", "syncer step 8 was read 4 times in 1 attempts", said(UNREAD)),
    ("accounted.time", "are unexplained, most of them of c", lambda e: without(e, is_a((LearnerLost, LearnerFenced)))),
    ("closed.refusals", "for 'whim', which is no reason", said(Refused("a", 1, "contribution", "whim", 8, 0))),
    ("closed.refusals", "and no field was named", said(replace(REFUSED, detail=""))),
    ("closed.strangers", "d 1 was refused, and lent span 90", said(REFUSED, SpanGranted("d", 1, 90, 900, 916))),
    ("closed.strangers", "d 1 was refused, and merged", lambda e: said(REFUSED)(participant(learner="d")(e))),
    (
        "closed.strangers",
        "d 1 was refused, and merged",
        lambda e: said(LearnerAttached("d", 1, 8))(said(REFUSED)(participant(learner="d")(e))),
    ),
]


def step_of(event: Event, writer: str, step: int) -> bool:
    return event.writer == writer and is_a(StepFinished, step=step)(event)


def altered_step(events: Log, syncer_step: int, step: int) -> Log:
    which = is_a(Committed, syncer_step=syncer_step)
    all_ = next(e.fact for e in events if which(e)).participants
    return altered(events, which, participants=(replace(all_[0], step=step), *all_[1:]))


def using(events: Log, span: int) -> Log:
    """The last step of a is of this span."""
    last = max((e for e in events if e.writer == "a" and is_a(StepFinished)(e)), key=lambda e: e.fact.step)
    return altered(events, lambda e: e is last, span=span, position=900)


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize(("name", "words", "plant"), BROKEN, ids=[f"{name}: {words}" for name, words, _ in BROKEN])
def test_a_broken_invariant_is_told_in_words(name: str, words: str, plant: Plant) -> None:
    found = verdict(plant(history()), name)
    assert (found.status, words in found.reason) == ("violated", True), found.reason


def test_what_had_no_occasion_is_idle_and_no_pass() -> None:
    assert idle(history()) == NEVER_RESTARTED | NOBODY_REFUSED | NO_SLOW_LINK
    assert idle(said(REFUSED)(history())) == NEVER_RESTARTED | NO_SLOW_LINK


def test_a_log_without_a_pass_is_not_sound() -> None:
    assert sound(check(history()))
    assert not sound([]) and not sound([v for v in check(history()) if v.status == "idle"])


def test_two_epochs_are_one_history() -> None:
    assert idle(restarted(history())) == NOBODY_REFUSED | NO_SLOW_LINK
    counts = [summarise(log, {}, [])["commits"] for log in (history(), restarted(history()))]
    assert counts[0] == counts[1]
    assert settle(restarted(history())).fates == settle(history()).fates


LENT = said(*(SpanGranted("a", 1, 90 + n, 1000 * n, 1000 * n + 14, 1) for n in range(2)))(history())  # ahead of the log
REPEATED = restarted(history())
(AGAIN,) = (e.fact for e in REPEATED if is_a(Committed)(e) and e.incarnation != e.fact.epoch)
LATE_AT = 5.0 + max(e.at for e in REPEATED if is_a(Adopted)(e) and e.fact.version == AGAIN.syncer_step)
GONE = without(history(), lambda e: e.writer == "b" and BASE + 20.5 < e.at < BASE + 26.5)
LOST = inserted(GONE, is_a(Committed, syncer_step=26), FactsLost("b", 1, 30, 36, "the node was lost"))
JUMPED = [replace(e, at=e.at + 3600.0) if e.writer == "syncer" and e.at > BASE + 20 else e for e in history()]


def old_base() -> Log:
    """b alone commits, and at the end a what it did since step 2; the syncer's times run backwards."""
    log = [replace(e, at=e.at - 3600.0) if e.writer == "syncer" and e.at > BASE + 20 else e for e in steady(79)]
    for index in [index for index, e in enumerate(log) if is_a(Committed)(e)]:
        a, b = log[index].fact.participants
        one = replace(a, base_step=2, steps=a.step - 2, age=1) if is_a(Committed, syncer_step=78)(log[index]) else b
        log[index] = replace(log[index], fact=replace(log[index].fact, participants=(one,)))
    return log


def again(incarnation: int) -> Log:
    """A commit that two epochs say, which this one says late."""
    return [replace(e, at=LATE_AT) if e.fact == AGAIN and e.incarnation == incarnation else e for e in REPEATED]


def hit(kind: str, incarnation: int = 1) -> Log:
    """Learner b has this fault while nothing commits."""
    return inserted(steady(6), is_a(Committed, syncer_step=6), FaultInjected(0, kind, "b", incarnation, 1, 90.0))


KILLED = altered(LENT, is_a(LearnerFenced, learner="a"), reason="killed")
DIED = inserted(LENT, is_a(Committed, syncer_step=30), LearnerLost("a", 1, "died", ""))
UNHEARD = without(LENT, lambda e: any(step_of(e, "a", step) for step in range(20, END + 1)))
TOO_LATE = without(REPEATED, lambda e: is_a(Committed, syncer_step=18)(e) and e.incarnation == 1)
DECEIVED = [replace(e, fact=replace(e.fact, live=0)) if is_a(Committed)(e) else e for e in steady(6)]
CUT = without(history(), lambda event: event.writer == "b" and event.at > BASE + END - 4.0)
JUDGED: list[tuple[str, str, str, Log]] = [  # (claim, check, verdict, log)
    ("samples that a living learner was lent beyond its bound", "bounded.spans", "violated", LENT),
    ("steps that the log may lack excuse them: it was killed", "bounded.spans", "pass", KILLED),
    ("or was lost", "bounded.spans", "pass", DIED),
    ("or was not heard for as long", "bounded.spans", "pass", UNHEARD),
    ("an epoch that does not say what it starts from", "durable.restarts", "unknown",
     altered(REPEATED, is_a(SyncerStarted, epoch=2), versions=())),
    ("what was announced too late for the log the next epoch may say alone", "durable.restarts", "pass", TOO_LATE),
    ("and is no commit of another epoch", "fencing.epochs", "pass", TOO_LATE),
    ("nor a gap", "versions.chain", "pass", TOO_LATE),
    ("steps that commit are no gap", "live.rate", "pass", steady(80)),
    ("nor trouble", "live.recovery", "idle", steady(80)),
    ("without K learners there is no gap", "live.rate", "pass", steady(6, 80, LearnerFenced("b", 1, "killed"))),
    ("what the store was away for does not count", "live.rate", "pass", steady(6, 80, StoreWaited(70.0, "full"))),
    ("nor more than that", "live.rate", "violated", steady(6, 80, StoreWaited(10.0, "full"))),
    ("every trouble has its patience", "live.recovery", "pass", steady(6, 40, UNREAD, REOPENED)),
    ("and no more", "live.recovery", "violated", steady(6, 60, UNREAD, REOPENED)),
    ("and each epoch that did not live to begin", "live.recovery", "pass",
     steady(6, 40, *[SyncerLost(epoch, "died", "") for epoch in (1, 2)])),
    *((f"who meets {type(each).__name__} for ever is not recovering", "live.recovery", "violated",
       steady(6, 80, *[each] * 50)) for each in (UNREAD, REOPENED, LATE, REFUSED)),
    ("who is alive is told by the log, not by what a commit says of itself", "live.rate", "violated", DECEIVED),
    ("whose contributions are corrupted is not healthy", "live.recovery", "idle", hit("corrupt")),
    ("nor who is cut off", "live.recovery", "idle", hit("link")),
    ("who is slow is", "live.recovery", "violated", hit("slow")),
    ("and whose fault was in an incarnation that is gone", "live.recovery", "violated", hit("link", 7)),
    ("who drains is not", "live.recovery", "idle", steady(6, 80, DrainStarted("b", 1, "scaled down"))),
    ("a wall clock that jumps makes no gap", "live.rate", "pass", JUMPED),
    ("nor a slow recovery", "live.recovery", "pass", JUMPED),
    ("what was done on an old base is no gap", "live.rate", "pass", old_base()),
    ("but time of which nothing is known", "accounted.time", "unknown", JUMPED),
    ("one slow survivor is its own affair", "isolation.steps", "pass", slowed(history(), a=4.0)),
    ("without injected faults the slowness of hosts is no evidence", "isolation.steps", "idle",
     without(slowed(history(), a=4.0, b=4.0), is_a(FaultInjected))),
    ("a donor that tells what it gave", "replayable.states", "pass", from_peer()),
    ("a donor that gave again", "replayable.states", "pass",
     inserted(from_peer(), is_a(Donated), Donated("c", 2, 14, "dead", 99))),
    ("a donor that died with its word", "replayable.states", "unknown", from_peer(gave="")),
    ("the time of one whose last words never came", "accounted.time", "unknown", CUT),
    ("nor does it help that another was asked for once the run was over", "accounted.time", "unknown",
     renumbered([*CUT, Event("orchestrator", 1, 0, BASE + 40, LearnerRequested("b", 2, "", None))])),
    ("the time of facts that are gone", "accounted.time", "violated", GONE),
    ("the time of facts that the log says are lost", "accounted.time", "unknown", LOST),
    ("a commit that only a later epoch said is dated by nobody", "accounted.time", "pass",
     renumbered([e for e in again(2) if not (e.fact == AGAIN and e.incarnation == 1)])),
    ("an epoch's own word is a date", "accounted.time", "unknown", again(1)),
    ("a log without requests", "accounted.time", "unknown", without(history(), is_a(LearnerRequested))),
    ("another attempt is another read", "bounded.reads", "pass",
     said(StepReopened(8, 0, 0, "too few"), UNREAD, UNREAD)(history())),
    ("a loss that is no number says nothing of the clocks", "versions.clocks", "pass",
     altered(history(), is_a(StepFinished), loss=math.nan)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "log"), [each[1:] for each in JUDGED], ids=[each[0] for each in JUDGED])
def test_what_a_check_says_where_one_may_doubt(name: str, status: str, log: Log) -> None:
    found = verdict(log, name)
    assert found.status == status, found.reason


def test_a_run_that_finished_may_be_resumed_and_finish_again_but_not_go_on_by_itself() -> None:
    log = restarted(history())
    at = BASE + 18.3
    counted = [e.fact.tokens_committed for e in log if is_a(Committed)(e) and e.at < at][-1]
    facts = (Finished(18, counted, "reached"), RunFinished("finished", "reached"), RunResumed(1, 0, ("a", "b"), ()))
    ended = [Event("syncer" if n == 0 else "orchestrator", 1, 0, at + n / 100, fact) for n, fact in enumerate(facts)]
    extended = renumbered(sorted([*log, *ended], key=lambda event: event.at))
    assert idle(extended) == NOBODY_REFUSED | NO_SLOW_LINK
    alone = without(extended, is_a(RunResumed))
    assert {each.name for each in check(alone) if each.status == "violated"} == {
        "log.ending", "durable.records", "versions.clocks", "books.committed", "merges.closed"
    }  # fmt: skip
    sixteenth = next(event.fact for event in log if is_a(Committed, syncer_step=16)(event))
    late = inserted(extended, is_a(Finished, syncer_step=18), replace(sixteenth, syncer_step=19))
    assert verdict(late, "merges.closed").reason.startswith("syncer step 19 committed after the end at step 18")


def test_a_state_that_was_saved_is_known_however_many_were_saved_before_it_is_contributed_from() -> None:
    """Learner c's second incarnation goes on from what a saved before its step 15, and a saves on and on."""
    saves = [StateSaved(number, 15 + number, ()) for number in range(9)]
    events = [event for event in from_peer() if not is_a(Donated)(event)]
    events = inserted(events, lambda e: e.writer == "a" and is_a(StepFinished, step=15)(e), *saves)
    assert verdict(events, "replayable.states").status == "pass"


def test_time_of_which_the_log_lacks_facts_is_unattributed_and_a_wait_that_a_drain_ended_is_not() -> None:
    """Learner b has nothing to step on from second 26 on, and leaves at 31."""
    goodput = accounts_of(LOST)
    assert goodput is not None
    assert goodput.seconds["b"]["unattributed"] == pytest.approx(6.3, abs=1e-5)
    assert verdict(LOST, "accounted.time").reason == "the log lacks facts of b"
    hung = without(history(), lambda e: e.writer == "b" and is_a(StepFinished)(e))  # in its first step, to the end
    assert verdict(renumbered(hung), "accounted.time").reason == "the log lacks facts of b"
    events = without(history(), lambda e: e.writer == "b" and is_a(StepFinished)(e) and e.at > BASE + 26.5)
    at = next(e for e in events if e.at > BASE + 31)
    leaving = Event("b", 1, 0, at.at, PhaseEntered("draining"))
    goodput = accounts_of(renumbered(sorted([*events, leaving], key=lambda e: e.at)))
    assert goodput is not None
    assert goodput.seconds["b"]["data_stall"] == pytest.approx(5.1, abs=0.1)
    assert goodput.seconds["b"]["unattributed"] == pytest.approx(0.0, abs=0.1)


def test_a_span_that_was_under_way_at_the_fence_harms_nobody() -> None:
    events = said(*AFTER_FENCE, SpanReturned("a", 1, 90, 900, 916))(history())
    assert "granted" not in verdict(events, "fencing.fences").reason
