"""The summary: exactly these keys, strict JSON, and null for what the log does not tell."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.facts import Adopted
from orchestrator.accounting.summary import summarise
from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.suite import check
from orchestrator.eventlog.block import block_of
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerStarted,
    RunFinished,
)
from orchestrator.recipe.config import BudgetConfig, PoolConfig, Recipe
from orchestrator.report.render import contents_of
from outer.protocol.facts import Committed, LeaseExpired, Refused
from tests.orchestrator.histories import altered, history, inserted, is_a, script, without
from tests.orchestrator.order import canonical

KEYS = [
    "name",
    "config_hash",
    "ok",
    "state",
    "reason",
    "initial_eval_loss",
    "eval_loss",
    "loss_unit",
    "eval_metrics",
    "tokens",
    "token_fragments",
    "syncer_steps",
    "commits",
    "rounds_per_fragment",
    "wall_s",
    "tokens_per_s",
    "availability",
    "goodput_time",
    "goodput_categories",
    "global_downtime_s",
    "outer_downtime_s",
    "participation",
    "faults",
    "faults_left_out",
    "refusals",
    "wire_bytes",
    "checks",
]
RECIPE = {"name": "small", "sync": {"codec": "bf16"}}
CLOSE = {"abs": 1e-5}


def summary(events: list[Event]) -> dict[str, Any]:
    return summarise(events, RECIPE, check(canonical(events)))


def test_a_finished_run_whose_checks_pass_is_ok() -> None:
    told = summary(history())
    assert list(told) == KEYS
    assert told["ok"] is True
    assert (told["name"], told["config_hash"], told["state"]) == ("small", "cafe", "finished")
    assert (told["initial_eval_loss"], told["eval_loss"]) == (5.0, 3.0)
    assert (told["syncer_steps"], told["commits"], told["rounds_per_fragment"]) == (32, 16, 8)
    assert told["wall_s"] == pytest.approx(32.3, **CLOSE)
    assert told["tokens_per_s"] == pytest.approx(864 / 32.3, **CLOSE)
    assert {check["status"] for check in told["checks"]} == {"pass", "idle"}


@pytest.mark.parametrize(
    "events", [history(), script().events, history()[:40], []], ids=["whole", "live", "cut", "none"]
)
def test_every_summary_is_strict_json_with_the_same_keys(events: list[Event]) -> None:
    told = summary(events)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert list(told) == KEYS


def test_one_check_that_does_not_pass_spoils_it() -> None:
    events, verdicts = history(), check(history())
    for status in ("violated", "unknown"):
        assert not summarise(events, RECIPE, [*verdicts, Verdict("x", "", status, "")])["ok"]
    assert not summarise(events, RECIPE, [])["ok"]
    stopped = altered(events, is_a(RunFinished), state="stopped")
    assert not summarise(stopped, RECIPE, verdicts)["ok"]


def test_the_tokens_are_those_of_the_books() -> None:
    told = summary(history())
    tokens, shares = told["tokens"], told["token_fragments"]
    assert tokens["processed"] == tokens["committed"] + tokens["in_flight"] + sum(tokens["discarded"].values()) == 888
    assert shares["processed"] == 2 * tokens["processed"]
    assert shares["committed"] == sum(shares["by_fragment"]) == 680 + 592


def test_bytes_are_fragment_sizes_times_the_codec() -> None:
    events = history()
    sizes = {0: 10, 1: 20}
    up = sum(sizes[e.fact.fragment] * len(e.fact.participants) for e in events if is_a(Committed)(e))
    down = sum(sizes[e.fact.fragment] for e in events if type(e.fact).__name__ == "Adopted")
    assert summary(events)["wire_bytes"] == {"up": 2 * up, "down": 4 * down}
    assert summarise(events, {"sync": {"codec": "fp32"}}, [])["wire_bytes"]["up"] == 4 * up
    assert summarise(events, {}, [])["wire_bytes"]["up"] is None


@pytest.mark.parametrize("kind", [Committed, Adopted])
def test_a_fragment_that_the_syncer_does_not_have_counts_no_bytes(kind: type[Any]) -> None:
    events = history()
    victim = next(event for event in events if isinstance(event.fact, kind) and event.fact.fragment == 1)
    strange = [replace(e, fact=replace(victim.fact, fragment=99)) if e is victim else e for e in events]
    told = contents_of([block_of(canonical(strange))], '[sync]\ncodec = "bf16"')
    expected = summary(events)["wire_bytes"]
    if kind is Committed:
        expected["up"] -= 2 * 20 * len(victim.fact.participants)
    else:
        expected["down"] -= 4 * 20
    links = told.fold.traffic.learners.values()
    assert told.summary["wire_bytes"] == expected
    assert {"up": 2 * sum(e.up for e in links), "down": sum(e.down + e.joins for e in links)} == expected


def test_a_recipe_serves_as_well_as_its_plain_form() -> None:
    recipe = Recipe(name="small", pools=(PoolConfig(name="p"),), budget=BudgetConfig(syncer_steps=1))
    assert summarise(history(), recipe, []) == summarise(history(), recipe.canonical(), [])


def test_an_empty_log_is_null_and_not_zero() -> None:
    told = summary([])
    known = {name for name, value in told.items() if value is not None and name not in ("checks", "ok")}
    assert known == {"name", "tokens", "faults", "faults_left_out", "refusals", "wire_bytes"}
    assert told["ok"] is False


def test_an_injected_kill_is_followed_to_the_first_contribution_after_it() -> None:
    kill = summary(history())["faults"][0]
    assert (kill["kind"], kill["target"], kill["injected"], kill["tokens_lost"]) == ("kill", "c", True, 16)
    assert (kill["at_s"], kill["detection_s"], kill["recovery_s"]) == pytest.approx((9.5, 1.0, 8.7), **CLOSE)
    phases = kill["recovery_phases"]
    assert list(phases) == ["detect", "decide", "start", "import", "compile", "state", "first_contribution"]
    assert list(phases.values()) == pytest.approx([1.0, 1.0, 1.0, 1.0, 2.0, 0.5, 2.2], **CLOSE)
    assert sum(phases.values()) == pytest.approx(kill["recovery_s"], **CLOSE)


def test_a_freeze_is_detected_by_its_lease_and_recovers_with_a_contribution_after_the_heal() -> None:
    freeze = summary(history())["faults"][1]
    assert (freeze["kind"], freeze["target"], freeze["injected"], freeze["tokens_lost"]) == ("freeze", "a", True, 0)
    assert (freeze["at_s"], freeze["detection_s"], freeze["recovery_s"]) == pytest.approx((20.5, 2.0, 5.7), **CLOSE)


def test_a_freeze_shorter_than_the_lease_is_never_detected() -> None:
    freeze = summary(without(history(), is_a(LeaseExpired)))["faults"][1]
    assert freeze["detection_s"] is None
    assert freeze["recovery_s"] is not None


def test_a_freeze_that_has_not_healed_has_no_recovery_yet() -> None:
    freeze = summary(without(history(), is_a(FaultHealed)))["faults"][1]
    assert freeze["recovery_s"] is None
    assert freeze["tokens_lost"] is None


def test_a_death_that_no_fault_explains_counts_from_the_last_sign_of_life() -> None:
    death = summary(without(history(), is_a(FaultInjected, fault_kind="kill")))["faults"][0]
    assert (death["kind"], death["target"], death["injected"], death["tokens_lost"]) == ("kill", "c", False, 16)
    assert (death["at_s"], death["detection_s"], death["recovery_s"]) == pytest.approx((9.0, 1.5, 9.2), **CLOSE)


def test_a_freeze_that_ends_in_a_restart_is_that_freeze_and_no_second_death() -> None:
    events = altered(history(), is_a(FaultInjected, fault_kind="kill"), fault_kind="freeze", duration_s=60.0)
    faults = summary(events)["faults"]
    assert [(fault["kind"], fault["target"]) for fault in faults] == [("freeze", "c"), ("freeze", "a")]
    assert faults[0]["tokens_lost"] == 16
    assert faults[0]["recovery_s"] == pytest.approx(8.7, **CLOSE)


def test_a_phase_that_was_not_said_is_null_and_the_next_carries_its_time() -> None:
    kill = summary(without(history(), is_a(LearnerStarted, incarnation=2)))["faults"][0]
    assert kill["recovery_phases"]["start"] is None
    assert kill["recovery_phases"]["import"] == pytest.approx(2.0, **CLOSE)
    assert sum(s for s in kill["recovery_phases"].values() if s is not None) == pytest.approx(8.7, **CLOSE)


def test_a_kill_that_nobody_has_noticed_yet_has_only_its_time() -> None:
    before = [e for e in history() if e.at < 1_700_000_010.2]
    kill = summary(before)["faults"][0]
    assert kill["injected"] is True
    assert (kill["detection_s"], kill["recovery_s"], kill["tokens_lost"]) == (None, None, None)
    assert set(kill["recovery_phases"].values()) == {None}


def test_a_learner_lost_after_the_end_is_no_fault() -> None:
    lost = LearnerLost("b", 1, "died", "")
    events = inserted(history(), is_a(Evaluated, syncer_step=32), lost)
    assert len(summary(events)["faults"]) == 2


def test_refusals_are_counted_by_reason() -> None:
    refused = [Refused("b", 1, "contribution", reason) for reason in ("late", "stale_base", "late")]
    assert summary(inserted(history(), is_a(Committed), *refused))["refusals"] == {"late": 2, "stale_base": 1}


def test_a_loss_that_is_not_finite_is_null() -> None:
    assert summary(altered(history(), is_a(Evaluated, syncer_step=32), loss=math.nan))["eval_loss"] is None


def test_a_kill_that_is_said_after_its_victim_was_missed_still_explains_the_death() -> None:
    events = [
        replace(event, at=event.at + 1.1) if is_a(FaultInjected, fault_kind="kill")(event) else event
        for event in history()
    ]
    kill, freeze = summary(events)["faults"]
    assert (kill["kind"], kill["injected"], kill["detection_s"], kill["tokens_lost"]) == ("kill", True, 0.0, 16)
    assert freeze["kind"] == "freeze"
