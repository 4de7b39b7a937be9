"""A log that lacks something, or contradicts itself, is refused in words that say where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.simulation.cluster import Cluster
from chaos.simulation.profile import draw
from learners.protocol.facts import Adopted, DeviceTaken, StateReceived, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.tables import part_of
from orchestrator.replay.environment import hints, needed, permitted
from orchestrator.replay.incarnation import Give, Read, TapeError
from orchestrator.replay.tape import record, said_in, tape_of
from orchestrator.simulation import log
from outer.protocol.facts import Committed, SyncerStarted
from tests.orchestrator.histories import altered, is_a, without
from tests.replay.shaken import Shaken

Make = Callable[..., Shaken]
SEEDS = (4, 6, 7, 9, 14)  # at which nothing of the log is lost
A0, A1, B0 = "learner-a-0", "learner-a-1", "learner-b-0"


def by(writer: str, kind: type[Any], **having: Any) -> Callable[[Event], bool]:
    """Whether it is a fact of this writer's first incarnation."""
    return lambda event: (event.writer, event.incarnation) == (writer, 1) and is_a(kind, **having)(event)


@pytest.fixture(scope="module")
def events(shaken_run: Make) -> list[Event]:
    return shaken_run().events


@pytest.fixture(scope="module")
def commit(events: list[Event]) -> Committed:
    """One of several contributions, by all three."""
    commits = [event.fact for event in events if isinstance(event.fact, Committed)]
    return next(each for each in commits[8:] if [one.learner for one in each.participants] == [A0, A1, B0])


def test_a_tape_has_every_commit_and_only_what_they_depend_on(events: list[Event]) -> None:
    tape = record(events)
    assert len(tape.commits) == sum(isinstance(event.fact, Committed) for event in events)
    assert set(tape.incarnations) == {(A0, 1), (A1, 1), (A1, 2), (B0, 1), (B0, 2)}
    for incarnation in tape.incarnations.values():
        assert isinstance(incarnation.moments[-1], Read | Give), "what came after it went nowhere"


def test_the_parts_in_which_a_log_is_read_do_not_matter(shaken_run: Make) -> None:
    events = shaken_run(adopt="rebase").events
    parts = (part_of(events[first : first + 64], first) for first in range(0, len(events), 64))
    assert tape_of(said_in(parts)) == record(events)
    assert any(isinstance(event.fact, Adopted) and event.fact.read_at is not None for event in events)


def test_a_step_without_progress_or_loss_is_told_apart_from_one_at_zero(events: list[Event]) -> None:
    place = next(n for n, event in enumerate(events) if isinstance(event.fact, StepFinished))
    bare = [*events]
    bare[place] = replace(events[place], fact=replace(events[place].fact, loss=math.nan, progress=None))
    said = said_in([part_of(bare)])[events[place].writer, events[place].incarnation]
    (first,) = [fact for fact in said if isinstance(fact, StepFinished)][:1]
    assert first.progress is None and math.isnan(first.loss)


def test_the_log_of_a_simulated_run_is_a_tape_though_learners_donors_and_syncers_die() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        cluster = Cluster(draw(seed, "mixed"))
        cluster.run()
        tape = record(log.read(cluster.context)[0])
        found["commits"] += len(tape.commits)
        for incarnation in tape.incarnations.values():
            found["states"] += sum(isinstance(moment, Give) for moment in incarnation.moments)
    assert found["commits"] > 50 * len(SEEDS) and found["states"] > len(SEEDS)


def test_what_a_later_epoch_says_again_word_for_word_counts_once(events: list[Event], commit: Committed) -> None:
    assert record(epoch_two(events, commit)) == record(events)


# ------------------------------------------------------------------ what a log lacks

Log = list[Event]
Plant = Callable[[Log, Committed], Log]
PEER = is_a(StateReceived, source="peer")


def epoch_two(events: Log, *commits: Committed) -> Log:
    """The log with another epoch, which says these commits."""
    started = next(event.fact for event in events if isinstance(event.fact, SyncerStarted))
    facts = [replace(started, epoch=2), *commits]
    return [*events, *(Event("syncer", 2, number, 1e9, fact) for number, fact in enumerate(facts))]


def cut_short(events: Log, commit: Committed) -> Log:
    """Of learner a 0 no step is there from the one on that went into the commit."""
    last = by(A0, StepFinished, step=commit.participants[0].step)
    cut = next(event.sequence for event in events if last(event))
    return [e for e in events if (e.writer, e.incarnation) != (A0, 1) or e.sequence < cut]


DEFECTS: list[tuple[Plant, tuple[str, ...]]] = [
    (cut_short, (f"{A0} 1: the log lacks facts of it: it does not come to what syncer step ", " merged of it")),
    (lambda e, c: altered(e, PEER, versions=()), ("the log lacks facts of it", f"what {A1} 2 started from")),
    (lambda e, c: altered(e, PEER, donor_incarnation=7), (" 7: the log lacks facts of it",)),
    (lambda e, c: without(e, is_a(SyncerStarted)), ("no syncer ever ran",)),
    (lambda e, c: altered(e, by(A0, StepFinished, step=3), progress=None), (f"{A0} 1: its step 3 has no progress",)),
]


@pytest.mark.parametrize(("plant", "words"), DEFECTS, ids=[words[-1] for _, words in DEFECTS])
def test_what_a_log_lacks_is_named(events: Log, commit: Committed, plant: Plant, words: tuple[str, ...]) -> None:
    with pytest.raises(TapeError) as error:
        record(plant(events, commit))
    assert [word for word in words if word not in str(error.value)] == [], error.value


# ------------------------------------------------------------------ on what it was computed


def test_learners_on_devices_of_two_kinds_are_named(events: list[Event]) -> None:
    alike = record(events)
    found = needed(alike)
    assert found is not None and found.platform == "cpu"
    with pytest.raises(TapeError, match=f"2 kinds .*{B0} 1 on 4 x H100"):
        needed(record(altered(events, by(B0, DeviceTaken), platform="gpu", device="H100", devices=4)))


def test_one_process_has_the_cpu_devices_of_the_largest_learner(events: list[Event]) -> None:
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=true"}
    one = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    settled = [
        replace(event, fact=replace(event.fact, settings=four if event.writer == B0 else one))
        if isinstance(event.fact, DeviceTaken)
        else event
        for event in events
    ]
    tape = record(altered(settled, by(B0, DeviceTaken), devices=4))
    found = needed(tape)
    assert found is not None
    assert found.settings["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4 --xla_cpu_enable_fast_math=true"
    here = replace(next(iter(tape.devices.values())), devices=1, settings=found.settings)
    assert not [each for each in hints(tape, here, {}) if "devices" in each or "XLA_FLAGS" in each]


def test_cores_do_not_matter_where_xla_has_one_thread(events: list[Event]) -> None:
    alone = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    settled = [
        replace(event, fact=replace(event.fact, settings=alone, cores=event.incarnation))
        if isinstance(event.fact, DeviceTaken)
        else event
        for event in events
    ]
    assert needed(record(settled)) is not None
    with pytest.raises(TapeError, match="2 kinds"):
        needed(record(altered(events, by(B0, DeviceTaken), cores=64)))


def test_a_process_gets_the_runs_settings_and_none_of_its_own(events: list[Event]) -> None:
    found = needed(record(events))
    assert found is not None
    inherited = {"PATH": "/bin", "XLA_FLAGS": "--mine", "JAX_PLATFORMS": "tpu", "JAX_ENABLE_X64": "1"}
    settings = {"XLA_FLAGS": OWN}
    assert replace(found, settings=settings).variables(inherited) == {
        "PATH": "/bin",
        "XLA_FLAGS": OWN,
        "JAX_PLATFORMS": "cpu",
    }


OWN = "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def test_what_a_learner_sets_itself_is_let_through_and_what_is_no_setting_is_left_out() -> None:
    hostile = {"LD_PRELOAD": "/run/evil.so", "PYTHONHOME": "/run", "PYTHONSTARTUP": "/run/x.py", "PATH": "/run"}
    for settings in ({"XLA_FLAGS": OWN}, {"XLA_FLAGS": OWN.partition(" ")[2]}, {"XLA_FLAGS": ""}, {}):
        assert permitted(settings | hostile, {}) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_FLAGS", f"{OWN} --xla_dump_to=/home"),
        ("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"),
        ("XLA_FLAGS", "/run/flags"),
        ("XLA_FLAGS", f"\x1c{OWN}"),
        ("XLA_FLAGS", OWN.replace(" ", "\tflags ", 1)),
        ("LIBTPU_INIT_ARGS", "--xla_tpu_dump_to=x"),
        ("JAX_ENABLE_X64", "1"),
    ],
)
def test_any_other_setting_is_refused_unless_the_user_has_it_too(name: str, value: str) -> None:
    with pytest.raises(TapeError) as error:
        permitted({name: value}, {name: "another"})
    assert f"{name} = {value!r}" in str(error.value)
    assert permitted({name: value}, {name: value}) == {name: value}


@pytest.mark.parametrize("change", [{"cores": -99}, {"devices": 0}])
def test_a_device_that_cannot_be_is_refused(events: list[Event], change: dict[str, int]) -> None:
    for learner in (A0, A1, B0):
        events = [
            replace(e, fact=replace(e.fact, **change)) if e.writer == learner and is_a(DeviceTaken)(e) else e
            for e in events
        ]
    with pytest.raises(TapeError, match="by its own word"):
        needed(record(events))


def test_hints_name_what_differs_and_what_was_not_recorded(events: list[Event]) -> None:
    tape = record(events)
    here = next(iter(tape.devices.values()))
    assert hints(tape, here, {}) == []
    other = replace(here, processor="another", settings={"XLA_FLAGS": "--fast"})
    assert hints(tape, other, {}) == [
        f"processor: {here.processor} in the run, another here",
        f"XLA_FLAGS: {here.settings.get('XLA_FLAGS', 'unset')} in the run, --fast here",
    ]
    unrecorded = record(without(events, is_a(DeviceTaken)))
    assert needed(unrecorded) is None
    assert "was not recorded" in hints(unrecorded, here, {})[0]
