"""Every fault that strikes a learner from within: it fires, it is found out or does no harm, and it heals.

Two runs for all of them: in the first, learners are slowed down, held up and cut off; in the second, what they say
is damaged, not finite, or of another recipe.
"""

import math
import statistics

import pytest

from learners.fault_effects import FaultEffects
from learners.protocol.facts import PhaseEntered, StateReceived, StepFinished
from orchestrator.eventlog.events import FaultHealed, FaultInjected, LearnerLost
from outer.protocol.facts import (
    Committed,
    LearnerAttached,
    LeaseExpired,
    LeaseRenewed,
    Quarantined,
    ReadFailed,
    Refused,
)
from tests.runtime.test_runs import assert_kept

pytestmark = pytest.mark.runtime

ROUND = 12
A, B, C = "learner-t-0", "learner-t-1", "learner-t-2"
SLOW_S, STRAGGLE_S = 0.15, 0.1
HELD_UP = [
    {"kind": "slow", "learner": A, "at_s": 5.0, "duration_s": 5.0, "delay_s": SLOW_S},
    {"kind": "straggle", "learner": B, "at_s": 11.0, "duration_s": 4.0, "delay_s": STRAGGLE_S},
    {"kind": "link", "learner": C, "at_s": 16.0, "duration_s": 5.0},
]
WRONG = [
    {"kind": "wrong_config", "learner": C, "at_s": 4.0},
    {"kind": "corrupt", "learner": A, "at_s": 5.0, "duration_s": 4.0},
    {"kind": "non_finite", "learner": B, "at_s": 10.0},
]


@pytest.fixture(scope="module")
def held_up(run):
    return run("held-up", sync={"H": ROUND}, budget={"syncer_steps": 420}, chaos={"faults": HELD_UP})


@pytest.fixture(scope="module")
def wrong(run):
    return run("wrong", sync={"H": ROUND}, budget={"syncer_steps": 400}, chaos={"faults": WRONG})


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


def commits(result, since, until):
    return [event for event in result.of(Committed) if since < event.at < until]


def weights(result, learner, since, until):
    """This learner's share of each commit; 0 where it took no part."""
    shares = [{each.learner: each.weight for each in e.fact.participants} for e in commits(result, since, until)]
    return [share.get(learner, 0.0) for share in shares]


def contributed(result, learner, after):
    """(time, incarnation, syncer step) of everything of this learner that merged after a moment."""
    return [
        (event.at, each.incarnation, event.fact.syncer_step)
        for event in commits(result, after, math.inf)
        for each in event.fact.participants
        if each.learner == learner
    ]


def everyone_steps_at(result):
    return max(e.at for e in result.of(PhaseEntered) if (e.fact.phase, e.incarnation) == ("stepping", 1))


# ------------------------------------------------------------------ slowed down, held up, cut off


def test_the_held_up_run_keeps_every_promise_and_loses_nobody(held_up):
    assert_kept(held_up)
    assert held_up.facts(LearnerLost) == []
    assert {row["kind"] for row in held_up.summary["faults"]} == {"slow", "straggle", "link"}


def test_a_slow_learner_weighs_less_and_does_not_slow_the_outer_loop(held_up):
    struck, healed = injected(held_up, "slow")
    before, during, after = (everyone_steps_at(held_up), struck.at), (struck.at, healed.at), (healed.at, healed.at + 5)
    slowed = steps(held_up, A, *during)[1:-1]
    assert len(slowed) > 3
    assert min(slowed) >= SLOW_S
    assert statistics.median(steps(held_up, A, *after)) < statistics.median(slowed) - SLOW_S / 2

    def pace(window):  # by the others' steps, since the machine's own speed varies
        return len(commits(held_up, *window)) / (len(steps(held_up, B, *window)) + len(steps(held_up, C, *window)))

    assert pace(during) >= 0.8 * pace(before)
    share = {window: statistics.mean(weights(held_up, A, *window)) for window in (before, during, after)}
    assert share[during] < 0.75 * min(share[before], share[after])
    assert row(held_up, "slow")["detection_s"] is None, "it is not an error to be slow"
    assert row(held_up, "slow")["recovery_s"] >= 5.0


def test_a_straggler_is_late_with_the_steps_that_its_seed_says(held_up):
    struck, healed = injected(held_up, "straggle")
    seen = steps(held_up, B, struck.at, healed.at)
    same = FaultEffects(lambda: 0.0)
    same.begin("straggle", 1e9, STRAGGLE_S, f"0 fault {struck.fact.fault}")
    expected = [same.delay_s() for _ in seen[:-3]]  # the last ones may fall after the end
    assert max(expected) > 3 * STRAGGLE_S
    assert max(seen) >= max(expected)
    assert len(commits(held_up, struck.at, healed.at)) > 3, "nobody waits for it"


def test_a_learner_that_is_cut_off_trains_on_loses_its_lease_and_is_back_within_a_round(held_up):
    struck, healed = injected(held_up, "link")
    (expired,), (renewed,) = held_up.of(LeaseExpired), held_up.of(LeaseRenewed)
    assert expired.fact.learner == renewed.fact.learner == C
    assert struck.at < expired.at < healed.at < renewed.at + 0.5
    assert len(steps(held_up, C, struck.at, expired.at)) > 3, "it does not notice"
    answered = [e for e in held_up.events if isinstance(e.fact, Refused | ReadFailed) and e.fact.learner == C]
    assert {event.fact.reason for event in answered} >= {"timeout", "late"}, "what was held back arrives late"
    assert [at for at, *_ in contributed(held_up, C, struck.at + 0.5) if at < renewed.at] == []
    assert commits(held_up, expired.at, healed.at), "the others go on"
    merged_until = max(event.fact.syncer_step for event in commits(held_up, 0, renewed.at))
    assert contributed(held_up, C, renewed.at)[0][2] <= merged_until + ROUND
    assert row(held_up, "link")["detection_s"] == pytest.approx(expired.at - struck.at)


# ------------------------------------------------------------------ damaged, not finite, of another recipe


def test_the_wrong_run_keeps_every_promise_and_stays_finite(wrong):
    assert_kept(wrong)
    assert {row["kind"] for row in wrong.summary["faults"]} == {"wrong_config", "corrupt", "non_finite"}
    assert all(math.isfinite(fact.norm) for fact in wrong.facts(Committed))
    assert math.isfinite(wrong.summary["eval_loss"])


def test_a_damaged_payload_is_refused_until_the_damage_ends(wrong):
    struck, healed = injected(wrong, "corrupt")
    refused = [event for event in wrong.of(Refused) if event.fact.reason == "bad_digest"]
    assert {(event.fact.learner, event.fact.message) for event in refused} == {(A, "contribution")}
    assert struck.at - 0.5 < refused[0].at < refused[-1].at < healed.at + 0.5
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
    (ready,) = [e.at for e in wrong.of(PhaseEntered) if (e.writer, e.incarnation, e.fact.phase) == (C, 2, "joining")]
    assert refused.at - ready < 1.0
    attached = [(e.fact.incarnation) for e in wrong.of(LearnerAttached) if e.fact.learner == C]
    assert attached == [1, 3]
    assert [(f.incarnation, f.cause) for f in wrong.facts(LearnerLost) if f.learner == C] == [
        (1, "died"),
        (2, "failed"),
    ]
    assert contributed(wrong, C, refused.at)[0][1] == 3
    gaps = [event.at for event in commits(wrong, struck.at, refused.at)]
    assert gaps, "the others go on"
    assert row(wrong, "wrong_config")["recovery_s"] == pytest.approx(
        sum(seconds for seconds in row(wrong, "wrong_config")["recovery_phases"].values() if seconds is not None)
    )
