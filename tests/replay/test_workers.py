"""Learners repeated by several processes at the same time: the same bits, and an end of one of them is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.replay import workers
from orchestrator.replay.environment import ONE_THREAD, Environment
from orchestrator.replay.incarnation import TapeError
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import Tape, record
from orchestrator.replay.workers import Workers, shares
from tests.replay.shaken import OneProcess, Points, Shaken

ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu"}
CPU = Environment("cpu", 1, {"XLA_FLAGS": ONE_THREAD})


@pytest.fixture(scope="module")
def run(shaken_run: Callable[..., Shaken]) -> Shaken:
    return shaken_run(adopt="rebase")


@pytest.fixture(scope="module")
def tape(run: Shaken) -> Tape:
    return record(run.events)


def test_learners_share_the_cores_as_they_had_them_in_the_run(
    run: Shaken, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(shares(tape, run.recipe, CPU, [0, 1])) == 1, "not worth a second process"
    monkeypatch.setattr(workers, "LEAST_STEPS", 1)
    found = shares(tape, run.recipe, CPU, [4, 5, 6, 7])
    assert [each.cores for each in found] == [(4,), (5,), (6,)], "three learners"
    assert sum(len(each.incarnations) for each in found) == len(tape.incarnations)
    assert len(shares(tape, run.recipe, Environment("cpu", 2, {}), [4, 5, 6, 7])) == 2, "two cores each"
    assert len(shares(tape, run.recipe, Environment("gpu", 2, {}), [4, 5, 6, 7])) == 1
    assert len(shares(tape, run.recipe, None, [4, 5, 6, 7])) == 1


def test_learners_with_other_numbers_of_devices_or_of_threads_are_in_processes_of_their_own(
    run: Shaken, tape: Tape
) -> None:
    names = sorted({learner for learner, _ in tape.incarnations})
    kinds = dict(zip(names, [(1, 1), (1, 2), (4, 2)], strict=True))
    incarnations = {
        key: replace(each, device=each.device and replace(each.device, devices=count, cores=cores))
        for key, each in tape.incarnations.items()
        for count, cores in [kinds[key[0]]]
    }
    found = shares(replace(tape, incarnations=incarnations), run.recipe, CPU, [4, 5])
    told = [({name for name, _ in each.incarnations}, each.devices, each.cores) for each in found]
    assert told == [({names[1]}, 1, (4, 5)), ({names[0]}, 1, (4,)), ({names[2]}, 4, (4, 5))]


@pytest.fixture
def processes(run: Shaken, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(workers, "LEAST_STEPS", 1)
    core = min(os.sched_getaffinity(0))
    parts = shares(tape, run.recipe, CPU, [core, core])
    assert len(parts) == 2
    with closing(Workers(parts, ENVIRONMENT)) as started:
        yield started
    assert all(process.exitcode is not None for process in started.processes)


def test_processes_compute_the_same_bits_as_one(run: Shaken, tape: Tape, processes: Workers) -> None:
    points = Points(run.recipe.data, run.recipe.seed)
    several, alone = (
        Replayer(tape, run.recipe, points, each) for each in (processes, OneProcess(tape, run.recipe, points))
    )
    for replayer in (several, alone):
        list(replayer.play())
    assert several.finish() == alone.finish() == run.parameters.digest()
    assert several.tally == alone.tally and several.tally.bit_equal is True
    assert several.tally.equal["state"] == 2, "one of them went from process to process, or both"


def test_a_process_that_ends_is_named_with_its_learners(run: Shaken, tape: Tape, processes: Workers) -> None:
    replayer = Replayer(tape, run.recipe, Points(run.recipe.data, run.recipe.seed), processes)
    playing = replayer.play()
    next(playing)
    group = processes.groups["learner-b-0"]
    processes.processes[group].kill()
    names = ", ".join(name for name, number in processes.groups.items() if number == group)
    with pytest.raises(RuntimeError, match=f"the process that replays {names} has ended with code -9"):
        list(playing)


def test_a_defect_of_the_tape_that_a_process_finds_is_a_tape_error(
    run: Shaken, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LEAST_STEPS", 1)
    pools = [pool.model_copy(update={"batch_size": 3}) for pool in run.recipe.pools]
    other = run.recipe.model_copy(update={"pools": tuple(pools)})
    core = min(os.sched_getaffinity(0))
    with closing(Workers(shares(tape, other, CPU, [core, core]), ENVIRONMENT)) as crew:
        replayer = Replayer(tape, other, Points(run.recipe.data, 0), crew)
        with pytest.raises(TapeError, match=r"had (8|16) tokens, and by the recipe it has 12"):
            list(replayer.play())
