"""A log that lacks something, or contradicts itself, is refused in words that say where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from learners.facts import Adopted, DeviceTaken, StateReceived, StepFinished
from orchestrator.events import Event
from orchestrator.replay.life import Give, Read, TapeError
from orchestrator.replay.surroundings import hints, needed
from orchestrator.replay.tape import record
from outer.facts import Committed, SyncerStarted
from tests.orchestrator.histories import altered, is_a, renumbered, without
from tests.replay.shaken import Shaken

Make = Callable[..., Shaken]
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


def refused(events: list[Event], *words: str) -> None:
    with pytest.raises(TapeError) as error:
        record(events)
    for word in words:
        assert word in str(error.value)


def test_a_tape_has_every_commit_and_only_what_they_depend_on(events: list[Event]) -> None:
    tape = record(events)
    assert len(tape.commits) == sum(isinstance(event.fact, Committed) for event in events)
    assert set(tape.lives) == {(A0, 1), (A1, 1), (A1, 2), (B0, 1), (B0, 2)}
    for life in tape.lives.values():
        assert isinstance(life.moments[-1], Read | Give), "what came after it went nowhere"


def test_a_missing_step_is_named(events: list[Event]) -> None:
    refused(without(events, by(A0, StepFinished, step=7)), f"{A0} 1: ", ": step 7 is missing")


def test_a_missing_fact_is_named_by_its_number(events: list[Event]) -> None:
    number = next(event.sequence for event in events if by(B0, StepFinished, step=4)(event))
    refused(
        [event for event in events if not by(B0, StepFinished, step=4)(event)], f"{B0} 1: its fact {number} is miss"
    )


def test_steps_missing_at_the_end_are_named_with_the_commit_that_has_them(
    events: list[Event], commit: Committed
) -> None:
    step = commit.participants[0].step
    cut = next(event.sequence for event in events if by(A0, StepFinished, step=step)(event))
    kept = [e for e in events if (e.writer, e.incarnation) != (A0, 1) or e.sequence < cut]
    refused(kept, f"{A0} 1: its step {step} is missing, which went into syncer step")


def test_a_log_of_an_older_version_is_told_what_it_lacks(events: list[Event]) -> None:
    refused(altered(events, by(A1, StepFinished, step=3), progress=None), "step 3 has no progress", "did not record it")
    received = is_a(StateReceived, source="peer")
    refused(altered(events, received, versions=()), "does not say which versions the donor held", "did not record it")


def test_a_donors_missing_or_other_state_is_named(events: list[Event]) -> None:
    received = next(event.fact for event in events if is_a(StateReceived, source="peer")(event))
    donor = (received.donor, received.donor_incarnation)
    gone = altered(events, is_a(StateReceived, source="peer"), donor_incarnation=7)
    refused(gone, f"{A1} 2 starts from the state of {donor[0]} 7, of which the log holds no word")
    other = altered(events, is_a(StateReceived, source="peer"), versions=(1, *received.versions[1:]))
    refused(other, f"{donor[0]} {donor[1]}: {A1} 2 started from its state", "it was never in that state")


def test_two_that_start_from_each_other_are_named(events: list[Event]) -> None:
    circle = [
        replace(event, fact=replace(event.fact, donor={A1: B0, B0: A1}[event.writer], donor_incarnation=2))
        if is_a(StateReceived, source="peer")(event)
        else event
        for event in events
    ]
    refused(circle, "start from each other's states", f"{A1} 2", f"{B0} 2")


def test_a_changed_weight_is_named(events: list[Event], commit: Committed) -> None:
    first, *rest = commit.participants
    changed = (replace(first, weight=first.weight + 1e-6), *rest)
    step = commit.syncer_step
    refused(altered(events, is_a(Committed, syncer_step=step), participants=changed), f"step {step}: {A0} 1 weighs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learner": "learner-a-9"}, "holds no word of learner-a-9 1"),
        ({"incarnation": 5}, f"holds no word of {A0} 5"),
        ({"base_step": 0}, f"{A0} 1: syncer step"),
        ({"learner": A1}, "had merged into it before"),
    ],
)
def test_a_changed_participant_is_named(events: list[Event], commit: Committed, change: Any, words: str) -> None:
    first, *rest = commit.participants
    if "learner" in change and change["learner"] == A1:
        first = rest[0]
    changed = altered(
        events, is_a(Committed, syncer_step=commit.syncer_step), participants=(replace(first, **change), *rest)
    )
    refused(changed, words)


def test_a_contribution_grown_from_another_version_is_named(events: list[Event], commit: Committed) -> None:
    last = max(
        (e for e in events if by(A0, Adopted, fragment=commit.fragment, version=commit.base_version)(e)),
        key=lambda event: event.sequence,
    )
    kept = renumbered([event for event in events if event is not last])
    refused(kept, f"{A0} 1", f"fragment {commit.fragment}", f"from version {commit.base_version}", "never held")


def test_a_missing_commit_is_named_at_the_next_of_its_fragment(events: list[Event], commit: Committed) -> None:
    refused(without(events, is_a(Committed, syncer_step=commit.syncer_step)), "a commit is missing, or one too many")


def test_an_adoption_of_what_was_never_committed_is_named(events: list[Event]) -> None:
    changed = altered(events, by(B0, Adopted, mode="overwrite"), version=999)
    refused(changed, f"{B0} 1: it adopts version 999", "never committed")


def test_what_a_later_epoch_says_again_word_for_word_counts_once(events: list[Event], commit: Committed) -> None:
    started = next(event.fact for event in events if isinstance(event.fact, SyncerStarted))
    again = [Event("syncer", 2, 0, 1e9, replace(started, epoch=2)), Event("syncer", 2, 1, 1e9, commit)]
    assert record([*events, *again]) == record(events)
    other = Event("syncer", 2, 1, 1e9, replace(commit, digest="0" * 64))
    refused([*events, again[0], other], f"syncer step {commit.syncer_step} committed in two ways")
    dealt = replace(started, epoch=2, sizes=(1, 1, 1, 1, 1))
    refused([*events, Event("syncer", 2, 0, 1e9, dealt)], "epoch 2 of the syncer has other fragments than epoch 1")


def test_a_log_without_a_syncer_is_told_so(events: list[Event]) -> None:
    refused([event for event in events if event.writer != "syncer"], "no SyncerStarted")


# ------------------------------------------------------------------ on what it was computed


def test_learners_on_devices_of_two_kinds_are_named(events: list[Event]) -> None:
    alike = record(events)
    found = needed(alike)
    assert found is not None and found.platform == "cpu"
    with pytest.raises(TapeError, match=f"2 kinds .*{B0} 1 on 4 x cpu"):
        needed(record(altered(events, by(B0, DeviceTaken), devices=4)))


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
    inherited = {"PATH": "/bin", "XLA_FLAGS": "--mine", "JAX_PLATFORMS": "tpu"}
    settings = {"XLA_FLAGS": "--theirs"}
    assert replace(found, settings=settings).environment(inherited) == {
        "PATH": "/bin",
        "XLA_FLAGS": "--theirs",
        "JAX_PLATFORMS": "cpu",
    }


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
