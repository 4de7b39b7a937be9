"""The log on real processes: whatever is killed or frozen, nobody is silent, and every lost fact is named."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from learners.protocol.facts import PhaseEntered, StepFinished
from orchestrator.checkers.suite import check_run
from orchestrator.eventlog.facts import RunStarted, SyncerLost
from outer.protocol.facts import Committed, FactsLost, SyncerStarted
from tests.runtime.conftest import LEARNERS
from tests.runtime.script import FOREVER, Script, all_step, kill, nothing
from tests.waiting import until

pytestmark = [pytest.mark.runtime, pytest.mark.full]

LEARNERS_ALL = {f"learner-t-{index}" for index in range(LEARNERS)}


def assert_nobody_is_silent(result, since):
    """Every learner's steps after this time are in the log, each writer's facts are there or named as lost."""
    assert {event.writer for event in result.of(StepFinished) if event.at > since} == LEARNERS_ALL
    lost = {}
    for fact in result.facts(FactsLost):
        lost.setdefault((fact.writer, fact.incarnation), set()).update(range(fact.first, fact.last + 1))
    numbers = {}
    for event in result.events:
        numbers.setdefault((event.writer, event.incarnation), []).append(event.sequence)
    for key, found in numbers.items():
        missing = set(range(max(found) + 1)).difference(found)
        assert missing == lost.get(key, set()) - set(found), key
    violated = [verdict for verdict in check_run(result.folder) if verdict.status == "violated"]
    assert violated == [], "diloco check passes"


def syncer_of(status):
    return status["syncer"]["pid"]


def test_a_syncer_that_is_killed_while_facts_wait_loses_nothing_that_it_acknowledged(run, tmp_path):
    """Three times, at no chosen moment: facts are always on their way."""
    struck = []

    def strike(status):
        struck.append(syncer_of(status))
        kill(struck[-1])

    def another(step):
        return lambda status: syncer_of(status) not in (*struck, None) and all_step(syncer_step=step)(status)

    script = Script(
        tmp_path / "killed",
        (another(20), strike),
        (another(50), strike),
        (another(80), strike),
        (another(110), nothing),
    )
    result = run("killed", script, tmp_path / "killed", budget=FOREVER)
    assert [fact.epoch for fact in result.facts(SyncerStarted)] == [1, 2, 3, 4]
    assert_nobody_is_silent(result, result.of(SyncerStarted)[-1].at)
    assert result.facts(FactsLost) == [], "learners keep their facts until they are durable"


def test_an_epoch_that_is_frozen_across_its_successors_start_acknowledges_nothing_when_it_thaws(run, tmp_path):
    """SIGSTOP, another epoch serves, SIGCONT: the thawed one finds the opening at its next position, and ends."""
    frozen = []

    def freeze(status):
        frozen.append(psutil.Process(syncer_of(status)))
        os.kill(frozen[0].pid, signal.SIGSTOP)

    def thaw(status):
        if frozen[0].is_running():
            os.kill(frozen[0].pid, signal.SIGCONT)
            until(lambda: not frozen[0].is_running() or frozen[0].status() == psutil.STATUS_ZOMBIE, "it has ended")

    def served(status):
        return syncer_of(status) not in (frozen[0].pid, None) and status["syncer"]["epoch"] == 2

    script = Script(
        tmp_path / "frozen", (all_step(syncer_step=30), freeze), (served, thaw), (all_step(syncer_step=80), nothing)
    )
    result = run("frozen", script, tmp_path / "frozen", budget=FOREVER, run={"syncer_lease_s": 5.0})
    assert [fact.cause for fact in result.facts(SyncerLost)] == ["lease_expired"]
    started = result.of(SyncerStarted)[-1]
    assert started.fact.epoch == 2
    assert [event for event in result.of(Committed) if event.incarnation == 1 and event.at > started.at] == []
    assert_nobody_is_silent(result, started.at)


def test_the_log_says_which_sources_and_which_format_made_it(run):
    result = run("said", budget={"syncer_steps": 8})
    (begun,) = result.facts(RunStarted)
    assert begun.versions["log"] == "2" and len(begun.versions["code"]) == 16
    assert not (result.folder / "events").exists() and not (result.folder / "events.jsonl").exists()
    assert {event.writer for event in result.of(PhaseEntered)} == LEARNERS_ALL
