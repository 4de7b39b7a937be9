"""Every fault that strikes a learner from within, one after the other in one run: it fires, harms nobody and heals.

Each is injected once the one before it has healed and everyone steps. How much a fault costs is measured by
benchmarks/standby.py and benchmarks/recovery.py.
"""

import math

import pytest

from learners.protocol.facts import PhaseEntered, StateReceived, StepFinished
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, LearnerLost
from outer.protocol.facts import Committed, LearnerAttached, LeaseExpired, LeaseRenewed, Quarantined, Refused
from tests.runtime.results import assert_kept
from tests.runtime.script import BY_HAND, FOREVER, Script, all_step, healed, inject, more, nothing

pytestmark = [pytest.mark.runtime, pytest.mark.full]

ROUND = 12
A, B, C = "learner-t-0", "learner-t-1", "learner-t-2"
SLOW_S, STRAGGLE_S = 0.15, 0.1
SYNC = {"H": ROUND, "quorum": 1, "lease_s": 3.0}


@pytest.fixture(scope="module")
def struck(run, tmp_path_factory):
    folder, name = tmp_path_factory.mktemp("faults"), "faults"
    script = Script(
        folder,
        (all_step(syncer_step=ROUND), inject(name, "slow", A, duration_s=5.0, delay_s=SLOW_S)),
        (healed(folder, "slow"), inject(name, "straggle", B, duration_s=5.0, delay_s=STRAGGLE_S)),
        (healed(folder, "straggle"), inject(name, "link", C, duration_s=15.0)),
        (healed(folder, "link"), nothing),
        (more(2 * ROUND), inject(name, "wrong_config", C)),
        (all_step(1, 1, 3), inject(name, "corrupt", A, duration_s=5.0)),
        (healed(folder, "corrupt"), nothing),
        (more(2 * ROUND), inject(name, "non_finite", B)),
        (all_step(1, 2, 3), nothing),
        (more(4 * ROUND), nothing),
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


def test_the_run_passes_every_check_and_stays_finite(struck):
    assert_kept(struck, "stopped")
    kinds = {row["kind"] for row in struck.summary["faults"]}
    assert kinds == {"slow", "straggle", "link", "wrong_config", "corrupt", "non_finite"}
    assert all(math.isfinite(fact.norm) for fact in struck.facts(Committed))
    assert {(fact.learner, fact.cause) for fact in struck.facts(LearnerLost)} == {
        (C, "died"), (C, "failed"), (B, "failed"),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "learner", "least_s"), [("slow", A, SLOW_S), ("straggle", B, 0.0)])
def test_one_that_is_held_up_steps_later_and_nobody_waits_for_it(struck, kind, learner, least_s):
    began, ended = injected(struck, kind)
    slowed = steps(struck, learner, *surely_struck(began, ended))[1:]
    assert slowed and min(slowed) >= least_s
    assert row(struck, kind)["detection_s"] is None, "it is not an error to be slow"
    assert commits(struck, began.at, ended.at)


def test_a_learner_that_is_cut_off_trains_on_loses_its_lease_and_takes_part_again(struck):
    began, ended = injected(struck, "link")
    expired, renewed = (
        next(event for event in struck.of(kind) if event.fact.learner == C and event.at > began.at)
        for kind in (LeaseExpired, LeaseRenewed)
    )
    assert began.at < expired.at < ended.at
    assert steps(struck, C, began.at, expired.at), "it does not notice"
    assert [at for at, *_ in contributed(struck, C, expired.at) if at < renewed.at] == []
    assert commits(struck, expired.at, ended.at), "the others go on"
    assert contributed(struck, C, renewed.at)[0][1] == 1
    assert row(struck, "link")["detection_s"] == pytest.approx(expired.at - began.at)


# ------------------------------------------------------------------ damaged, not finite, of another recipe


def test_a_damaged_payload_is_refused_until_the_damage_ends(struck):
    began, ended = injected(struck, "corrupt")
    refused = [event for event in struck.of(Refused) if event.fact.reason == "bad_digest"]
    assert {(event.fact.learner, event.fact.message) for event in refused} == {(A, "contribution")}
    assert began.at < refused[0].at
    assert contributed(struck, A, ended.at), "what is said after the end of the damage is sound"
    merged = [at for at, *_ in contributed(struck, A, refused[0].at) if at < refused[-1].at]
    assert merged == []
    assert {incarnation for _, incarnation, _ in contributed(struck, A, ended.at)} == {1}
    assert row(struck, "corrupt")["recovery_s"] is not None


def test_a_learner_that_is_not_finite_is_quarantined_and_starts_anew_from_a_peer(struck):
    began, _ = injected(struck, "non_finite")
    refused = [event for event in struck.of(Refused) if event.fact.reason == "non_finite"]
    assert {(event.fact.learner, event.fact.incarnation) for event in refused} <= {(B, 1)}
    (quarantined,) = struck.of(Quarantined)
    assert (quarantined.fact.learner, quarantined.fact.incarnation) == (B, 1)
    seen_at = min([quarantined.at, *(event.at for event in refused)])
    assert began.at < seen_at
    assert [at for at, incarnation, _ in contributed(struck, B, seen_at) if incarnation == 1] == []
    assert [fact.cause for fact in struck.facts(LearnerLost) if fact.learner == B] == ["failed"]
    (started,) = [e.fact for e in struck.of(StateReceived) if (e.writer, e.incarnation) == (B, 2)]
    assert (started.source, started.donor in (A, C)) == ("peer", True)
    assert contributed(struck, B, quarantined.at)[0][1] == 2
    assert row(struck, "non_finite")["detection_s"] == pytest.approx(seen_at - began.at)


def test_a_learner_of_another_recipe_is_refused_by_the_field_and_comes_back_with_the_right_one(struck):
    began, _ = injected(struck, "wrong_config")
    (refused,) = [event for event in struck.of(Refused) if event.fact.reason == "wrong_config"]
    assert (refused.fact.learner, refused.fact.incarnation, refused.fact.message) == (C, 2, "attach")
    assert refused.fact.detail == "seed: here 0, there 1"
    phases = [e.fact.phase for e in struck.of(PhaseEntered) if (e.writer, e.incarnation) == (C, 2)]
    assert "stepping" not in phases, "it is refused before it trains"
    attached = [(e.fact.incarnation) for e in struck.of(LearnerAttached) if e.fact.learner == C]
    assert attached == [1, 3]
    assert [(f.incarnation, f.cause) for f in struck.facts(LearnerLost) if f.learner == C] == [
        (1, "died"),
        (2, "failed"),
    ]
    assert contributed(struck, C, refused.at)[0][1] == 3
    assert commits(struck, began.at, refused.at), "the others go on"
    assert row(struck, "wrong_config")["recovery_s"] == pytest.approx(
        sum(seconds for seconds in row(struck, "wrong_config")["recovery_phases"].values() if seconds is not None)
    )
