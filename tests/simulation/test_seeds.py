"""Whole runs by seed: every kind of fault has its effect, and a seed says the same everywhere.

That no promise breaks under any faults, and that histories are what they were: tests/frozen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from chaos.simulation.checks.history import judged
from chaos.simulation.cluster import Cluster, Outcome, play, simulate
from chaos.simulation.faults.schedule import striking
from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import KINDS, PROFILES, Fault, Options, draw, shares
from chaos.simulation.runner import Tally, run
from learners.protocol.facts import StepFinished
from orchestrator.eventlog.facts import LearnerLost
from orchestrator.simulation import log as logs
from orchestrator.simulation.objects import MemoryObjects, StoreBroken
from outer.journal import rebuild
from outer.protocol.facts import Committed

EVERY_KIND = [kind for kinds in KINDS.values() for kind in kinds]
RUN_BELOW = ("syncer", "lockstep", "ended", "rebuilding")  # the same seeds and more


def assert_kept(outcome: Outcome, but: str = "") -> None:
    told = [f"seed {outcome.seed}  {each.check}: {each.reason}" for each in outcome.violations if each.check != but]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in ("mixed", "calm")])
def test_each_profile_has_its_own_faults_and_no_others(profile: str) -> None:
    if profile not in RUN_BELOW:
        assert run(range(1, 3), profile)[0].violations == []
    planned = {fault.kind for seed in range(1, 3) for fault in draw(seed, profile).faults}
    assert planned and planned <= set(shares(profile))


def test_a_calm_run_sees_no_fault_and_loses_nobody() -> None:
    outcome = simulate(2, "calm")
    assert_kept(outcome)
    assert outcome.fault_counts == {}
    assert [name for name in outcome.facts if name in ("LearnerLost", "LeaseExpired", "ReadFailed")] == []
    assert outcome.facts["LearnerAttached"] == 4 and outcome.commits == outcome.facts["Committed"] > 0


# ------------------------------------------------------------------ the same everywhere


def test_side_by_side_gives_what_one_after_another_gives() -> None:
    def gist(tally: Tally) -> tuple[object, ...]:
        return tally.digest, tally.seeds, tally.events, tally.fault_times, tally.facts

    assert gist(run(range(1, 3), "calm", jobs=2)[0]) == gist(run(range(1, 3), "calm")[0])


# ------------------------------------------------------------------ faults


def stricken(kind: str, seed: int) -> Options:
    """A short run with a few faults of one kind, and what it takes for them to matter."""
    apart = kind in KINDS["regions"]
    options = draw(
        seed,
        "regions" if apart else "calm",
        syncer_steps=60,
        P=3,
        H=6,
        tau=2,
        recover="syncer" if apart else "peer",
    )
    ats = [4.0 + 3.0 * number for number in range(3)]
    faults = [Fault(at, kind, name, 3.0, 0.6) for at, name in zip(ats, "abc", strict=True)]
    if kind == "crash_ending":
        faults.append(Fault(12.0, "stop", "a", 3.0, 0.6))  # that there is an end
    if kind == "checkpoint_damaged":
        faults.append(Fault(8.0, "suspend", "a", 3.0, 0.6))
    if kind == "journal_damaged":  # segments are made of what earlier epochs have left
        faults.append(Fault(5.0, "syncer_crash", "a", 3.0, 0.6))
    shards = 3 if kind.startswith(("shard", "value")) else 1
    options = replace(
        options, profile="mixed", storm_s=20.0, faults=tuple(faults), quorum=2, shards=shards, every_s=4.0
    )
    return replace(
        options, **{"standby": {"standbys": ("a", "b")}, "rank": {"ranks": {"a": 3}}}.get(kind.split("_")[0], {})
    )


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_of_fault_really_has_an_effect(kind: str) -> None:
    seen: list[dict[str, int]] = []
    for seed in range(4):
        outcome = play(stricken(kind, seed))
        assert_kept(outcome)
        seen.append(outcome.fault_counts)
        if outcome.fault_counts.get(kind):
            return
    raise AssertionError(f"{kind} had no effect: {seen}")


def test_every_kind_can_be_done_and_is_in_the_default_profile_or_that_of_runs_that_are_ended() -> None:
    assert all(map(striking, EVERY_KIND))
    assert set(KINDS) - set(PROFILES["mixed"]) == {"ending"} and PROFILES["calm"] == ()


def test_learners_outlive_every_epoch_of_the_syncer() -> None:
    """Nobody has to be killed, because a zombie or a new epoch does not hear it."""
    tally, _ = run(range(1, 5), "syncer")
    assert tally.violations == [] and tally.facts["SyncerStarted"] > 4 and not tally.facts["LearnerLost lease_expired"]


# ------------------------------------------------------------------ runs of another nature


def test_in_lock_step_everybody_is_in_every_commit_whatever_is_slow() -> None:
    tally, _ = run(range(1, 7), "lockstep")
    assert tally.violations == [] and tally.commits > 200
    assert tally.fault_times.keys() == {"reordering", "slow", "slow_link", "stop"}
    assert "LearnerLost" not in tally.facts


def test_a_token_budget_ends_a_run() -> None:
    options = draw(2, "calm", syncer_steps=60, P=2, H=4)
    whole, half = play(options), play(replace(options, budget_tokens=300))
    assert_kept(half)
    assert 0 < half.commits < whole.commits


def test_runs_that_end_early_leave_nobody_and_close_their_books() -> None:
    tally, _ = run(range(1, 13), "ended")
    assert tally.violations == []
    assert {"stop", "stop_committing", "crash_ending"} <= tally.fault_times.keys()


@pytest.mark.parametrize("seed", [7200174, 7200179, 7200351])
def test_a_stop_is_not_held_up_by_a_cut_that_never_comes(seed: int) -> None:
    """The budget was reached, or the syncer died, before the cut; learners had ended for the one before."""
    assert_kept(simulate(seed, "ended"))


# ------------------------------------------------------------------ the syncer dies between any two of its effects


def short(quorum: int, **sync: object) -> Options:
    options = draw(5, "calm", syncer_steps=12, learners=("a", "b"), P=2, H=3, **sync)
    return replace(options, quorum=quorum, storm_s=30.0)


def died(options: Options, effects: Sequence[int]) -> list[Outcome]:
    outcomes = [play(options, crash_after=number) for number in effects]
    for outcome in outcomes:
        # Whom an epoch has told to stop, and died before it said that it was finished, is idle until the next has said
        # so: that time has no category, and is most of so short a run.
        assert_kept(outcome, but="accounted.time")
    return outcomes


@pytest.mark.parametrize("first", [1, *(pytest.param(first, marks=pytest.mark.full) for first in (4, 7))])
def test_the_syncer_may_die_after_every_single_effect(first: int) -> None:
    """Of each nine effects one; all three: of each three."""
    options = short(2, tau=2, adopt="overwrite", pacing="clock")
    calm = play(options)
    assert_kept(calm)
    outcomes, number = [], first
    while not outcomes or outcomes[-1].fault_counts.get("syncer_crash"):
        outcomes += died(options, [number])
        number += 9
    assert number > 100, "one run for each effect there was"
    assert {outcome.commits for outcome in outcomes} == {calm.commits}, "every version was committed once, by somebody"


def test_so_too_when_learners_rebase() -> None:
    options = short(1, tau=0, adopt="rebase", pacing="quorum")
    outcomes = died(options, range(1, 60, 7))
    assert all(outcome.fault_counts == {"syncer_crash": 1} for outcome in outcomes)


# ------------------------------------------------------------------ the log loses its newest groups, and an epoch thaws


def struck(kind: str, seed: int, runs: int) -> list[Outcome]:
    """The first so many runs in which the fault had an effect, from this seed on."""
    found: list[Outcome] = []
    while len(found) < runs:
        options = draw(seed, "mixed", syncer_steps=60)
        outcome = play(replace(options, faults=(Fault(0.3 * options.storm_s, kind, "", 1.0, 0.9),)))
        found += [outcome] if outcome.fault_counts.get(kind) else []
        seed += 1
    return found


@pytest.mark.parametrize(("seed", "runs"), [(1, 4), pytest.param(5, 11, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["tail_lost", "zombie"])
def test_nobody_is_silenced_and_every_lost_fact_is_named(kind: str, seed: int, runs: int) -> None:
    """The checks `facts.*` and `bounds.silent` are among those that hold."""
    outcomes = struck(kind, seed, runs)
    assert seed > 1 or outcomes[-1].seed == runs, "the full runs begin where these end"
    assert [violation for outcome in outcomes for violation in outcome.violations] == []
    named = sum(outcome.facts.get("FactsLost", 0) > 0 for outcome in outcomes)
    assert named > runs // 2 if kind == "tail_lost" else named == 0


def test_what_lingers_of_a_session_that_has_ended_is_not_taken_over_by_the_next() -> None:
    """It was a session more than was resumed: seed 7000186 of mixed."""
    for seed in range(3):
        faults = tuple(Fault(at, kind, "a", 3.0, 0.6) for at, kind in ((7.0, "linger"), (8.0, "suspend")))
        outcome = play(replace(stricken("suspend", seed), faults=faults))
        assert_kept(outcome)
        assert outcome.fault_counts["linger"] > 1 and outcome.facts["RunResumed"] == 1


# ------------------------------------------------------------------ what is stored is damaged


def test_learners_that_cannot_be_resumed_start_from_their_saved_states() -> None:
    """The checkpoint is damaged, so nobody goes on exactly, and nobody steps who could give its state."""
    starts = [play(stricken("checkpoint_damaged", seed)) for seed in range(3)]
    assert [violation for outcome in starts for violation in outcome.violations] == []
    assert all(outcome.facts["StateReceived"] == 8 for outcome in starts if not outcome.facts.get("Resumed"))
    assert not all(outcome.facts.get("Resumed") for outcome in starts)


def test_a_journal_whose_groups_or_values_are_damaged_is_rebuilt() -> None:
    tally, _ = run(range(1, 7), "rebuilding")
    assert tally.violations == [] and tally.facts["StateRebuilt"] > 3
    assert {"journal_damaged", "value_damaged"} <= tally.fault_times.keys()


def test_a_run_goes_on_from_what_is_left_when_no_learner_gives_a_version_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold newer versions than the epoch has, or have steps in versions that are lost."""
    monkeypatch.setattr(rebuild, "HELD_S", 0.0)
    for seed in (1, 4):
        outcome = simulate(seed, "rebuilding")
        assert_kept(outcome)
        assert outcome.facts["StateRebuilt"] and outcome.facts["Finished"] == 1


# ------------------------------------------------------------------ a learner that is cut off for ten minutes

CUT_AT_S, CUT_S, STEP_S = 60.0, 600.0, 0.5
HEALED_S = CUT_AT_S + CUT_S


@pytest.mark.parametrize("adopt", ["overwrite", pytest.param("rebase", marks=pytest.mark.full)])
def test_a_learner_that_is_cut_off_for_ten_minutes_steps_on_and_is_the_same_incarnation_afterwards(adopt: str) -> None:
    options = draw(1, "calm", syncer_steps=1800, P=2, H=4, tau=1, grace=0.0, adopt=adopt)
    cut = Fault(CUT_AT_S, "cut_two_way", "a", CUT_S, 1.0)
    cluster = Cluster(
        replace(
            options, faults=(cut,), storm_s=HEALED_S + 1.0, quorum=1, hang_s=5.0, unreachable_s=3600.0, ahead_s=3600.0,
            step_s=dict.fromkeys(options.step_s, STEP_S),
        )
    )  # fmt: skip
    cluster.run()
    context = cluster.context
    log, damage = logs.read(context)
    assert [*damage, *context.oracle.violations, *judged(log, context.fault_counts)] == []
    assert [each for each in log if isinstance(each.fact, LearnerLost)] == []
    steps = [each.at for each in log if each.writer == "a" and isinstance(each.fact, StepFinished)]
    assert {each.incarnation for each in log if each.writer == "a"} == {1}
    assert max(later - earlier for earlier, later in pairwise(steps)) < 2.0, "it never waits"
    merged = [
        (each.at, one.steps)
        for each in log
        if isinstance(each.fact, Committed)
        for one in each.fact.participants
        if one.learner == "a"
    ]
    away = [at for at, _ in merged if CUT_AT_S + 5.0 < at < HEALED_S]
    back = [(at, count) for at, count in merged if at > HEALED_S]
    assert away == [] and back, "others go on without it, and it takes part again"
    largest = max(count for _, count in back)
    if adopt == "rebase":
        assert largest > 0.9 * CUT_S / STEP_S, "its work of ten minutes merges"
    else:
        assert largest < 50, "the newer versions replace its work"


def test_what_a_store_refuses_is_not_there_and_an_error_does_not_say_whether_it_is() -> None:
    taken: list[Any] = []
    store = Store(random.Random(0), Counter(), 0.0, taken.append)
    store.full = True
    with pytest.raises(OSError, match="no space left"):
        store.create("a/1", [b"1"])
    store.heal()
    store.failing, there = 1.0, []
    for number in range(200):
        with pytest.raises((OSError, StoreBroken)) as error:
            store.create(f"a/{number}", [b"1"])
        there.append((error.type is StoreBroken, f"a/{number}" in MemoryObjects.names(store, "a")))
    assert set(there) == {(broken, created) for broken in (False, True) for created in (False, True)}
