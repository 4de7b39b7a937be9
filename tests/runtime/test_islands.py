"""Islands: learners of several processes. Any rank's death ends its gang alone, and the log is that of any run."""

import psutil
import pytest

from learners.protocol.facts import DeviceTaken, StepFinished
from orchestrator.eventlog.facts import (
    CheckpointWritten,
    LearnerLost,
    LearnerRequested,
    LearnerStarted,
    OrchestratorFollowed,
)
from orchestrator.eventlog.reader import read_run
from outer.protocol.facts import Committed, SyncerStarted
from tests.runtime.results import assert_bit_equal, assert_kept
from tests.runtime.script import BY_HAND, FOREVER, Script, inject, kill, said, stepping

pytestmark = [pytest.mark.runtime, pytest.mark.full]

NAME = "islands"
A, B, ALONE = "learner-i-0", "learner-i-1", "learner-t-0"
BY_HAND_T = {"faults": [{**BY_HAND["faults"][0], "learner": ALONE}]}


def merged(folder, a, b, alone=1):
    """All step as these incarnations, and what these made is in commits."""

    def took_part(learner, incarnation):
        return said(
            folder,
            lambda event: (
                isinstance(event.fact, Committed)
                and any((one.learner, one.incarnation) == (learner, incarnation) for one in event.fact.participants)
            ),
        )

    wanted = {A: a, B: b, ALONE: alone}
    parts = [took_part(*each) for each in wanted.items()]
    return lambda status: stepping(status) == wanted and all(each(status) for each in parts)


def later_checkpoint(event):
    """Of all learners, and written by a later orchestrator."""
    return isinstance(event.fact, CheckpointWritten) and event.incarnation > 1 and event.fact.omitted == ()


def at_once(status):
    """A condition that holds."""
    return True


@pytest.fixture(scope="module")
def islands(run, tmp_path_factory):
    """A's rank 1 is killed; then syncer, orchestrator and the learner that is no island at once; after another
    checkpoint, from outside, B's rank 1.
    """
    folder, ranks, ended = tmp_path_factory.mktemp(NAME), {}, []

    def look(status):
        for row in status["learners"]:
            ranks[row["name"], row["incarnation"]] = [row["pid"], *(each["pid"] for each in row["ranks"])]

    def strike_three(status):
        look(status)
        ended.append(status["orchestrator"]["pid"])
        kill(status["syncer"]["pid"], *ended, *ranks[ALONE, 1])

    def others_serve(status):
        if status["orchestrator"]["pid"] in ended or stepping(status) != {A: 2, B: 1, ALONE: 2}:
            return False
        return any(map(later_checkpoint, read_run(folder)))

    script = Script(
        folder,
        (merged(folder, 1, 1), look),
        (at_once, inject(NAME, "kill", f"{A}/1")),
        (merged(folder, 2, 1), strike_three),
        (others_serve, lambda status: kill(ranks[B, 1][1])),
        (merged(folder, 2, 2, 2), look),
    )
    paced = {"batch_size": 4, "slowdown": 20.0}
    pools = [
        {"name": "i", "learners": 2, "processes": 2, "devices": 2, "model_parallel": 2, **paced},
        {"name": "t", "learners": 1, **paced},
    ]
    settings = {"sync": {"quorum": 1}, "durability": {"every_s": 3.0, "keep": 100}, "chaos": BY_HAND_T}
    return run(NAME, script, folder, budget=FOREVER, pools=pools, **settings), ranks


def test_a_run_of_islands_passes_every_check_and_is_computed_again_to_the_bit(islands):
    result, _ = islands
    assert_kept(result, "stopped")
    lost = [(fact.learner, fact.incarnation) for fact in result.facts(LearnerLost)]
    assert lost == [(A, 1), (B, 1)], "each with its gang, and nobody else while an orchestrator was there"
    assert {(A, 1), (A, 2), (B, 1), (B, 2), (ALONE, 2)} <= result.participants()
    assert {fact.epoch for fact in result.facts(Committed)} >= {1, 2}
    assert_bit_equal(result.folder)


def test_orchestrator_syncer_and_a_learner_are_killed_at_once_and_the_others_step_through_it(islands):
    result, _ = islands
    ((followed,), (_, started)) = result.of(OrchestratorFollowed), result.of(SyncerStarted)
    assert followed.fact.epoch == 0 and set(followed.fact.learners) == {A, B}
    asked = sorted((fact.learner, fact.incarnation) for fact in result.facts(LearnerRequested))
    assert asked == [(name, number) for name in (A, B, ALONE) for number in (1, 2)]
    assert any(map(later_checkpoint, result.events)), "checkpoints go on"
    stepped = {event.writer for event in result.of(StepFinished) if followed.at < event.at < started.at}
    assert stepped >= {A, B}, "they waited for the syncer"


def test_the_log_and_the_status_know_each_rank(islands):
    result, ranks = islands
    started = {(fact.learner, fact.incarnation): fact for fact in result.facts(LearnerStarted)}
    for key, pids in ranks.items():
        assert pids == [started[key].pid, *started[key].pids]
        assert len(set(pids)) == (1 if key[0] == ALONE else 2)
    assert {fact.devices for fact in result.facts(DeviceTaken)} == {1, 4}


def test_no_rank_outlives_its_gang(islands):
    _, ranks = islands
    assert not [pid for pids in ranks.values() for pid in pids if psutil.pid_exists(pid)]
