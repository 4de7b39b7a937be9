"""Standbys: they take over, follow each other, and neither an unready one nor a lost orchestrator stops a run."""

import time

import psutil
import pytest
import ray

from orchestrator.eventlog.facts import LearnerLost, OrchestratorFollowed
from tests.runtime.conftest import namespace
from tests.runtime.results import assert_bit_equal, assert_kept
from tests.runtime.script import FOREVER, Script, kill, stepping

pytestmark = [pytest.mark.runtime, pytest.mark.full]

NAME = "standby"
A, B = "learner-t-0", "learner-t-1"


def complete(incarnation):
    """Both step, A as this incarnation, and a standby waits in each one's place."""

    def look(status):
        ready = all(row["standbys"] == 1 for row in status["learners"])
        return status["run"]["state"] == "running" and stepping(status) == {A: incarnation, B: 1} and ready

    return look


def steps_as(incarnation):
    return lambda status: stepping(status).get(A) == incarnation


@pytest.fixture(scope="module")
def stood_in(run, tmp_path_factory):
    """A is killed while a standby waits, again before it has another, then when it has; so is the orchestrator."""
    folder, killed, began = tmp_path_factory.mktemp(NAME), {}, {}

    def process(status):
        (pid,) = (row["pid"] for row in status["learners"] if row["name"] == A)
        began[stepping(status)[A]] = psutil.Process(pid).create_time()
        return pid

    def strike(status):
        pid = process(status)
        killed[stepping(status)[A]] = time.time()
        kill(pid)

    ended = []

    def strike_orchestrator(status):
        ended.append(status["orchestrator"]["pid"])
        kill(*ended)

    def another_serves(status):
        return status["orchestrator"]["pid"] not in ended and complete(4)(status)

    script = Script(
        folder,
        (complete(1), strike),
        (steps_as(2), strike),
        (complete(3), strike),
        (steps_as(4), strike_orchestrator),
        (another_serves, strike),
        (steps_as(5), process),
    )
    pools = [{"name": "t", "learners": 2, "batch_size": 2, "slowdown": 20.0, "standby": 1}]
    return run(NAME, script, folder, sync={"quorum": 1}, budget=FOREVER, pools=pools), killed, began


def test_a_run_with_standbys_passes_every_check_and_is_computed_again_to_the_bit(stood_in):
    result, _, _ = stood_in
    assert_kept(result, "stopped")
    assert [fact.incarnation for fact in result.facts(LearnerLost) if fact.learner == A] == [1, 2, 3, 4]
    assert {(A, 1), (A, 3), (A, 4)} <= result.participants(), "2 may die before it is in a commit"
    assert_bit_equal(result.folder)


def test_a_process_that_waited_is_the_next_incarnation(stood_in):
    _, killed, began = stood_in
    for number in (2, 4, 5):
        assert began[number] < killed[number - 1]


def test_another_orchestrator_finds_the_learner_that_was_a_standby(stood_in):
    result, _, _ = stood_in
    (followed,) = result.facts(OrchestratorFollowed)
    assert set(followed.learners) == {A, B}


def test_no_actor_outlives_the_run(stood_in):
    deadline = time.monotonic() + 60.0
    while [each for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == namespace(NAME)]:
        assert time.monotonic() < deadline, ray.util.list_named_actors(all_namespaces=True)
        time.sleep(0.1)
