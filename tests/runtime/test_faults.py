"""Every fault that strikes a learner from within: it fires, it is found out or does no harm, and it heals.

Two runs for all of them: in the first, learners are slowed down, held up and cut off; in the second, what they say
is damaged, not finite, or of another recipe. Each fault is injected once the one before it has healed and everyone
steps. How much a fault costs is a matter of timing: benchmarks/isolation.py and benchmarks/recovery.py measure it.
"""

import math

import pytest

from learners.fault_effects import FaultEffects
from learners.protocol.facts import PhaseEntered, StateReceived, StepFinished
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, LearnerLost
from outer.protocol.facts import (
    Committed,
    LearnerAttached,
    LeaseExpired,
    LeaseRenewed,
    Quarantined,
    ReadFailed,
    Refused,
)
from tests.runtime.script import BY_HAND, FOREVER, Later, Script, all_step, inject, nothing
from tests.runtime.test_runs import assert_kept

pytestmark = [pytest.mark.runtime, pytest.mark.full]

ROUND = 12
A, B, C = "learner-t-0", "learner-t-1", "learner-t-2"
SLOW_S, STRAGGLE_S = 0.15, 0.1
SYNC = {"H": ROUND, "quorum": 1, "lease_s": 3.0}


@pytest.fixture(scope="module")
def held_up(run, tmp_path_factory):
    folder, name = tmp_path_factory.mktemp("held-up"), "held-up"
    script = Script(
        folder,
        (all_step(syncer_step=ROUND), inject(name, "slow", A, duration_s=5.0, delay_s=SLOW_S)),
        (Later(5.0, 2 * ROUND), inject(name, "straggle", B, duration_s=5.0, delay_s=STRAGGLE_S)),
        (Later(5.0, 2 * ROUND), inject(name, "link", C, duration_s=15.0)),
        (Later(15.0, 4 * ROUND), nothing),
    )
    return run(name, script, folder, sync=SYNC, budget=FOREVER, chaos=BY_HAND)


@pytest.fixture(scope="module")
def wrong(run, tmp_path_factory):
    folder, name = tmp_path_factory.mktemp("wrong"), "wrong"
    script = Script(
        folder,
        (all_step(syncer_step=ROUND), inject(name, "wrong_config", C)),
        (all_step(1, 1, 3), inject(name, "corrupt", A, duration_s=5.0)),
        (Later(5.0, 2 * ROUND), inject(name, "non_finite", B)),
        (all_step(1, 2, 3), nothing),
        (Later(0.0, 4 * ROUND), nothing),
    )
    return run(name, script, folder, sync=SYNC, budget=FOREVER, chaos=BY_HAND)


def injected(result, kind):
    """The one fault of this kind: its event and that of its healing, None where it does not heal by itself."""
    (struck,) = [event for event in result.of(FaultInjected) if event.fact.fault_kind == kind]
    healed = [event for event in result.of(FaultHealed) if event.fact.fault == struck.fact.fault]
    return struck, next(iter(healed), None)


def row(result, kind):
    (found,) = [fault for fault in result.summary["faults"] if fault["kind"] == kind]
    assert found["injected"]
    return found


def steps(result, learner, since, until):
    return [e.fact.seconds for e in result.of(StepFinished) if e.writer == learner and since < e.at < until]


def surely_struck(struck, healed):
    """The first half of a fault: it ends before its injector says so, by as much as the injector heard of it late."""
    return struck.at, (struck.at + healed.at) / 2


def commits(result, since, until):
    return [event for event in result.of(Committed) if since < event.at < until]


def contributed(result, learner, after):
    """(time, incarnation, syncer step) of everything of this learner that merged after a moment."""
    return [
        (event.at, each.incarnation, event.fact.syncer_step)
        for event in commits(result, after, math.inf)
        for each in event.fact.participants
        if each.learner == learner
    ]


def merged_anew(result, learner, since, syncer_step):
    """Its first contribution after that moment was merged at most a round after that step."""
    return contributed(result, learner, since)[0][2] <= syncer_step + ROUND


# ------------------------------------------------------------------ slowed down, held up, cut off


def test_the_held_up_run_passes_every_check_and_loses_nobody(held_up):
    assert_kept(held_up, "stopped")
    assert held_up.facts(LearnerLost) == []
    assert {row["kind"] for row in held_up.summary["faults"]} == {"slow", "straggle", "link"}


def test_a_slow_learner_weighs_less_in_a_commit_than_one_that_made_more_steps(held_up):
    struck, healed = injected(held_up, "slow")
    slowed = steps(held_up, A, *surely_struck(struck, healed))[1:]
    assert slowed and min(slowed) >= SLOW_S
    assert row(held_up, "slow")["detection_s"] is None, "it is not an error to be slow"
    assert row(held_up, "slow")["recovery_s"] >= 5.0
    fewer = 0
    for commit in held_up.facts(Committed):
        each = {one.learner: one for one in commit.participants}
        for other in each.values():
            if A in each and each[A].steps < other.steps:
                fewer += 1
                assert each[A].weight < other.weight
    assert fewer, "it fell behind"


def test_a_slow_learner_does_not_slow_the_outer_loop_and_is_as_fast_as_the_others_once_it_heals(held_up):
    """Everything is counted by the others' steps, since the machine's own speed varies."""
    struck, healed = injected(held_up, "slow")
    during, after = (struck.at, healed.at), (healed.at, injected(held_up, "straggle")[0].at)

    def others(window):
        return (len(steps(held_up, B, *window)) + len(steps(held_up, C, *window))) / 2

    speed = {window: len(steps(held_up, A, *window)) / others(window) for window in (during, after)}
    assert speed[during] < 0.8 * speed[after]
    assert speed[after] > 0.6
    commits_a_step = {window: len(commits(held_up, *window)) / others(window) for window in (during, after)}
    assert commits_a_step[during] > 0.5 * commits_a_step[after], "the others do not wait for it"


def test_a_straggler_is_late_with_the_steps_that_its_seed_says(held_up):
    struck, healed = injected(held_up, "straggle")
    seen = steps(held_up, B, *surely_struck(struck, healed))
    same = FaultEffects(lambda: 0.0)
    same.begin("straggle", 1e9, STRAGGLE_S, f"{held_up.seed} fault {struck.fact.fault}")
    delays = [same.delay_s() for _ in seen]

    def late(first):  # so many steps of those seen were under way when the fault struck
        return all(step >= delay for step, delay in zip(seen[first:], delays, strict=False))

    assert len(seen) > 3 and any(map(late, (0, 1, 2)))
    assert commits(held_up, struck.at, healed.at), "nobody waits for it"


def test_a_learner_that_is_cut_off_trains_on_loses_its_lease_and_is_back_within_a_round(held_up):
    struck, healed = injected(held_up, "link")
    expired, renewed = (
        next(event for event in held_up.of(kind) if event.fact.learner == C and event.at > struck.at)
        for kind in (LeaseExpired, LeaseRenewed)
    )
    assert struck.at < expired.at < healed.at
    assert expired.at < renewed.at
    assert steps(held_up, C, struck.at, expired.at), "it does not notice"
    answered = [e for e in held_up.events if isinstance(e.fact, Refused | ReadFailed) and e.fact.learner == C]
    assert {event.fact.reason for event in answered} >= {"timeout", "late"}, "what was held back arrives late"
    assert [at for at, *_ in contributed(held_up, C, expired.at) if at < renewed.at] == []
    assert commits(held_up, expired.at, healed.at), "the others go on"
    merged_until = max(event.fact.syncer_step for event in commits(held_up, 0, renewed.at))
    assert merged_anew(held_up, C, renewed.at, merged_until)
    assert row(held_up, "link")["detection_s"] == pytest.approx(expired.at - struck.at)


# ------------------------------------------------------------------ damaged, not finite, of another recipe


def test_the_wrong_run_passes_every_check_and_stays_finite(wrong):
    assert_kept(wrong, "stopped")
    assert {row["kind"] for row in wrong.summary["faults"]} == {"wrong_config", "corrupt", "non_finite"}
    assert all(math.isfinite(fact.norm) for fact in wrong.facts(Committed))
    assert math.isfinite(wrong.summary["eval_loss"])


def test_a_damaged_payload_is_refused_until_the_damage_ends(wrong):
    struck, healed = injected(wrong, "corrupt")
    refused = [event for event in wrong.of(Refused) if event.fact.reason == "bad_digest"]
    assert {(event.fact.learner, event.fact.message) for event in refused} == {(A, "contribution")}
    assert struck.at < refused[0].at
    assert contributed(wrong, A, healed.at), "what is said after the end of the damage is sound"
    merged = [at for at, *_ in contributed(wrong, A, refused[0].at) if at < refused[-1].at]
    assert merged == []
    assert {incarnation for _, incarnation, _ in contributed(wrong, A, healed.at)} == {1}
    assert row(wrong, "corrupt")["recovery_s"] is not None


def test_a_learner_that_is_not_finite_is_quarantined_and_starts_anew_from_a_peer(wrong):
    struck, _ = injected(wrong, "non_finite")
    refused = [event for event in wrong.of(Refused) if event.fact.reason == "non_finite"]
    assert len(refused) >= 3
    assert {(event.fact.learner, event.fact.incarnation) for event in refused} == {(B, 1)}
    (quarantined,) = wrong.of(Quarantined)
    assert (quarantined.fact.learner, quarantined.fact.incarnation) == (B, 1)
    assert struck.at < refused[2].at <= quarantined.at
    assert [at for at, incarnation, _ in contributed(wrong, B, refused[0].at) if incarnation == 1] == []
    assert [fact.cause for fact in wrong.facts(LearnerLost) if fact.learner == B] == ["failed"]
    (started,) = [e.fact for e in wrong.of(StateReceived) if (e.writer, e.incarnation) == (B, 2)]
    assert (started.source, started.donor in (A, C)) == ("peer", True)
    assert contributed(wrong, B, quarantined.at)[0][1] == 2
    assert row(wrong, "non_finite")["detection_s"] == pytest.approx(refused[0].at - struck.at)


def test_a_learner_of_another_recipe_is_refused_by_the_field_and_comes_back_with_the_right_one(wrong):
    struck, _ = injected(wrong, "wrong_config")
    (refused,) = [event for event in wrong.of(Refused) if event.fact.reason == "wrong_config"]
    assert (refused.fact.learner, refused.fact.incarnation, refused.fact.message) == (C, 2, "attach")
    assert refused.fact.detail == "seed: here 0, there 1"
    phases = [e.fact.phase for e in wrong.of(PhaseEntered) if (e.writer, e.incarnation) == (C, 2)]
    assert "stepping" not in phases, "it is refused before it trains"
    attached = [(e.fact.incarnation) for e in wrong.of(LearnerAttached) if e.fact.learner == C]
    assert attached == [1, 3]
    assert [(f.incarnation, f.cause) for f in wrong.facts(LearnerLost) if f.learner == C] == [
        (1, "died"),
        (2, "failed"),
    ]
    assert contributed(wrong, C, refused.at)[0][1] == 3
    assert commits(wrong, struck.at, refused.at), "the others go on"
    assert row(wrong, "wrong_config")["recovery_s"] == pytest.approx(
        sum(seconds for seconds in row(wrong, "wrong_config")["recovery_phases"].values() if seconds is not None)
    )
