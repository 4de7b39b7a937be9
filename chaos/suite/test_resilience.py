"""Every kind of fault that chaos can strike, once each in one run: what must hold of any recipe, in plain words.

Each is struck once the one before has healed and everyone is well. Everything is asserted from the run's log. Bounds
are wide: on one machine a learner that starts anew takes cores from the others, and so does whatever else runs there.
"""

from __future__ import annotations

import json

import pytest

from chaos.plans import KINDS
from chaos.suite.driver import DELAY_S, HEADLESS, MERGED, OF_SYNCER, PARTED, STEPS, STOP, Driver, Struck

pytestmark = pytest.mark.runtime

ENDS = ("kill", "non_finite", "wrong_config")  # the incarnation
LASTS = tuple(fault for fault in KINDS if fault not in ENDS)
LEAST = 1 / 4  # of the pace before; of what waits until the fault is over nearly nothing is left


def of(*faults: str) -> pytest.MarkDecorator:
    """Make a claim of each of these faults."""
    return pytest.mark.parametrize("struck", faults, indirect=True, scope="module")


# ------------------------------------------------------------------ the others


@of(*KINDS, *OF_SYNCER, HEADLESS)
def test_the_other_learners_step_at_least_at_a_quarter_of_their_pace(struck: Struck) -> None:
    pace = struck.pace()
    assert set(pace) == struck.run.learners - {struck.victim}
    assert min(pace.values()) >= LEAST


@of(*KINDS, HEADLESS)
def test_commits_go_on_at_least_at_a_quarter_of_their_pace(struck: Struck) -> None:
    assert struck.commits() >= LEAST


@of(*KINDS, *OF_SYNCER, HEADLESS, STOP)
def test_no_other_learner_is_restarted(struck: Struck) -> None:
    lost = "SELECT learner, cause, detail FROM LearnerLost WHERE t > $at AND t <= $until AND learner <> $victim"
    assert struck.rows(lost) == []


# ------------------------------------------------------------------ what was struck


@of(*KINDS, *OF_SYNCER, HEADLESS, STOP)
def test_it_is_back_within_the_deadlines_of_the_recipe(struck: Struck) -> None:
    """A learner takes part in a commit again, a new syncer commits, a new orchestrator has found everyone."""
    assert struck.late_s <= struck.bound_s


@of(*LASTS)
def test_a_learner_that_recovers_goes_on_as_the_same_incarnation(struck: Struck) -> None:
    after = f"FROM {MERGED} WHERE learner = $victim AND t > $healed AND t <= $until"
    assert struck.rows(f"SELECT DISTINCT incarnation {after}") == [(struck.incarnation,)]


@of(*ENDS)
def test_a_learner_that_starts_anew_has_the_state_of_a_peer(struck: Struck) -> None:
    """Parameters and optimizer state, to the bit as the peer sent them."""
    received = "r.told_in = $victim AND r.told_by > $incarnation AND r.t <= $back"
    sent = "d.joiner = r.told_in AND d.joiner_incarnation = r.told_by AND d.digest = r.digest"
    states = f"SELECT r.source, d.told_in FROM StateReceived r LEFT JOIN Donated d ON {sent} WHERE {received}"
    source, donor = struck.rows(f"{states} ORDER BY r.position")[-1]
    assert source == "peer" and donor in struck.run.learners - {struck.victim}


@of(*PARTED)
def test_commits_leave_out_a_learner_that_is_silent_until_it_is_heard_again(struck: Struck) -> None:
    if struck.lasted_s <= struck.lease_s:
        pytest.skip(f"half of run.hang_s is less than its lease, {struck.lease_s:.0f} s")
    lease = "SELECT min(t) FROM {} WHERE learner = $victim AND t > $at AND t <= $until"
    ((silent,),), ((heard,),) = (struck.rows(lease.format(kind)) for kind in ("LeaseExpired", "LeaseRenewed"))
    assert silent < struck.at + struck.lasted_s and silent < heard
    merged = f"WHERE learner = $victim AND t - sync_s > {silent} AND t < {heard}"  # decided and durable in between
    assert struck.rows(f"SELECT t FROM {MERGED} {merged}") == []


@of("link")
def test_a_learner_that_is_cut_off_trains_on(struck: Struck) -> None:
    assert struck.rows(f"SELECT step FROM {STEPS} WHERE learner = $victim AND t > $at AND t < ($at + $healed) / 2")


@of("slow")
def test_a_slow_learner_takes_longer_for_every_step(struck: Struck) -> None:
    whole = "t - seconds > $at AND t < ($at + $healed) / 2"  # the first half: its injector may tell of the end late
    (_, *seconds) = struck.rows(f"SELECT seconds FROM {STEPS} WHERE learner = $victim AND {whole} ORDER BY step")
    assert seconds and min(seconds)[0] >= DELAY_S


@of("corrupt", "non_finite", "wrong_config")
def test_what_is_damaged_is_refused_and_never_merged(struck: Struck) -> None:
    """A damaged contribution, one that is not finite; a learner of another recipe, before its first step."""
    reason = "bad_digest" if struck.fault == "corrupt" else struck.fault
    signs = f"SELECT t, learner, incarnation FROM Refused WHERE reason = '{reason}'"
    if struck.fault == "non_finite":
        signs += " UNION ALL SELECT t, learner, incarnation FROM Quarantined"
    told = f"SELECT min(t), max(t), any_value(incarnation) FROM ({signs})"
    ((first, last, culprit),) = struck.rows(f"{told} WHERE learner = $victim AND t > $at AND t <= $until")
    assert culprit is not None, "it was noticed"
    half_s = struck.lasted_s / 2  # its injector may tell of the end late
    last = (
        max(last, struck.at + half_s) if struck.fault == "corrupt" else struck.until
    )  # others never become sound again
    asked = (
        f"{MERGED} JOIN StepOpened o ON o.syncer_step = commits.syncer_step AND o.t > {first} AND commits.t < {last}"
    )
    assert struck.rows(f"SELECT o.t FROM {asked} WHERE learner = $victim AND incarnation = {culprit}") == []
    if struck.fault == "wrong_config":
        assert culprit == struck.incarnation + 1
        assert struck.rows(f"SELECT step FROM {STEPS} WHERE learner = $victim AND incarnation = {culprit}") == []


@of(*OF_SYNCER)
def test_the_next_epoch_begins_and_the_old_one_acknowledges_nothing_any_more(struck: Struck) -> None:
    ((began, epoch),) = struck.rows("SELECT t, told_by FROM SyncerStarted WHERE t > $at AND t <= $until")
    assert epoch == struck.incarnation + 1
    epochs = struck.rows(f"SELECT DISTINCT told_by FROM commits_told WHERE t > {began} AND t <= $until")
    assert epochs == [(epoch,)]


@of(STOP)
def test_a_stopped_run_goes_on_with_every_learner_as_it_was(struck: Struck) -> None:
    ((exact, damaged),) = struck.rows("SELECT exact, damaged FROM RunResumed WHERE t > $at")
    assert (sorted(exact), damaged) == (sorted(struck.run.learners), [])
    assert struck.rows("SELECT learner, incarnation FROM LearnerRequested WHERE t > $at") == []


# ------------------------------------------------------------------ the whole run: these stop it


def test_every_check_of_the_log_passes(run: Driver) -> None:
    assert run.summary["state"] == "stopped", run.summary["reason"]
    checked = json.loads(run.command("check", str(run.store.root), "--json").stdout)
    assert [each for each in checked["checks"] if each["status"] not in ("pass", "idle")] == []


def test_every_token_is_accounted_for_and_no_fact_is_lost(run: Driver) -> None:
    tokens = run.summary["tokens"]
    assert tokens["processed"] == tokens["committed"] + sum(tokens["discarded"].values())
    assert [(tokens["processed"],)] == run.rows("SELECT sum(tokens)::BIGINT FROM steps")
    assert run.rows("SELECT writer FROM FactsLost") == []


def test_the_run_is_computed_again_to_the_bit(run: Driver) -> None:
    """Every loss, state, contribution and commit, and the final parameters."""
    if run.address:
        pytest.skip("on another machine the bits may differ: there, diloco replay")
    assert run.summary["state"] == "stopped", run.summary["reason"]
    allowed = ["--task", run.recipe.task] + [f"--rule={rule}" for rule in (run.recipe.outer.merge,) if ":" in rule]
    run.say("waiting: replay, which may take as long as the run did; -k 'not to_the_bit' leaves it out")
    told = run.command("replay", str(run.store.root), "--json", *allowed)
    assert told.returncode == 0, told.stdout + told.stderr
