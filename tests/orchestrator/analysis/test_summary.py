"""The summary: exactly these keys, strict JSON, and null for what the log does not tell."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from learners.protocol.facts import Adopted
from orchestrator.analysis.checks import check
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.verdicts import Verdict
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import (
    Evaluated,
    FaultHealed,
    FaultInjected,
    LearnerLost,
    LearnerStarted,
    RunFinished,
    SyncerLost,
)
from orchestrator.eventlog.tables import part_of
from orchestrator.recipe.config import BudgetConfig, PoolConfig, Recipe
from orchestrator.report.render import contents_of
from outer.protocol.facts import Committed, LearnerAttached, LearnerFenced, LeaseExpired, Quarantined, Refused
from tests.orchestrator.histories import (
    BASE,
    altered,
    history,
    inserted,
    is_a,
    parts,
    renumbered,
    restarted,
    script,
    without,
)

KEYS = [
    "name",
    "config_hash",
    "ok",
    "state",
    "reason",
    "initial_eval_loss",
    "eval_loss",
    "eval_fault",
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
    "round_steps",
    "faults",
    "faults_left_out",
    "set_aside",
    "refusals",
    "wire_bytes",
    "checks",
]
RECIPE = {"name": "small", "sync": {"H": 4, "codec": "bf16"}}
CLOSE = {"abs": 1e-5}


def summary(events: list[Event]) -> dict[str, Any]:
    return summarise(events, RECIPE, check(events))


def test_a_finished_run_whose_checks_pass_is_ok() -> None:
    told = summary(history())
    assert list(told) == KEYS
    assert told["ok"] is True
    assert (told["name"], told["config_hash"], told["state"]) == ("small", "cafe", "finished")
    assert (told["initial_eval_loss"], told["eval_loss"]) == (5.0, 3.0)
    late = summarise(altered(history(), is_a(Evaluated), syncer_step=4), {}, [])
    assert late["initial_eval_loss"] is None, "those of a later step are not the initial parameters"
    assert (told["syncer_steps"], told["commits"], told["rounds_per_fragment"]) == (32, 16, 8)
    rounds = {"a": pytest.approx(25 / 7), "b": 4.0, "c": 4.0}  # a stood still in one; c missed two, and began anew
    assert told["round_steps"] == {"asked": 4, "median": 4.0, "by_learner": rounds}
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
    told = contents_of([part_of(strange)], '[sync]\ncodec = "bf16"')
    expected = summary(events)["wire_bytes"]
    if kind is Committed:
        expected["up"] -= 2 * 20 * len(victim.fact.participants)
    else:
        expected["down"] -= 4 * 20
    assert told.summary["wire_bytes"] == expected


def test_a_recipe_serves_as_well_as_its_plain_form() -> None:
    recipe = Recipe(name="small", pools=(PoolConfig(name="p"),), budget=BudgetConfig(syncer_steps=1))
    assert summarise(history(), recipe, []) == summarise(history(), recipe.canonical(), [])


def test_an_empty_log_is_null_and_not_zero() -> None:
    told = summary([])
    known = {name for name, value in told.items() if value is not None and name not in ("checks", "ok")}
    assert known == {"name", "tokens", "faults", "faults_left_out", "set_aside", "refusals", "wire_bytes"}
    assert told["ok"] is False


def test_refusals_are_counted_by_reason() -> None:
    refused = [Refused("b", 1, "contribution", reason) for reason in ("late", "stale_base", "late")]
    assert summary(inserted(history(), is_a(Committed), *refused))["refusals"] == {"late": 2, "stale_base": 1}


def test_a_loss_that_is_not_finite_is_null() -> None:
    assert summary(altered(history(), is_a(Evaluated, syncer_step=32), loss=math.nan))["eval_loss"] is None


# ------------------------------------------------------------------ faults

FREEZE, KILL = (is_a(FaultInjected, fault_kind=kind) for kind in ("freeze", "kill"))


def said(events: list[Event], at: float, *facts: Any, writer: str = "syncer", incarnation: int = 1) -> list[Event]:
    """The log with facts said at that second."""
    new = [Event(writer, incarnation, 0, BASE + at, fact) for fact in facts]
    return renumbered(sorted([*events, *new], key=lambda event: event.at))


@pytest.mark.parametrize(
    "noticed",
    [[(18.7, 1)], [(18.7, 1), (19.5, 1)], [(18.7, 2)], [(18.7, 1), (19.5, 2)]],
    ids=["once", "by the next orchestrator too", "by the next one alone, of one that never came up", "and of both"],
)
def test_an_outage_of_the_syncer_is_told_once_and_whole_whoever_noticed_which_epoch(
    noticed: list[tuple[float, int]],
) -> None:
    events = restarted(history())
    later = [replace(e, incarnation=3) if (e.writer, e.incarnation) == ("syncer", 2) else e for e in events]
    for at, epoch in noticed:
        later = said(later, at, SyncerLost(epoch, "died", "why"), writer="orchestrator")
    rows = [row for row in summary(later)["faults"] if row["target"] == "syncer"]
    last = max(e.at for e in events if is_a(Committed)(e) and e.incarnation == 1)
    assert [(row["kind"], row["detection_s"]) for row in rows] == [("death", pytest.approx(BASE + 18.7 - last))]
    assert rows[0]["recovery_s"] is not None


def refused(learner: str, incarnation: int, reason: str, message: str = "contribution") -> Refused:
    return Refused(learner, incarnation, message, reason, 21 if message == "contribution" else None, 0)


def frozen(kind: str, **change: Any) -> list[Event]:
    """The run in which learner a, instead of being frozen, has this fault from 20.5 to 23.5."""
    return altered(history(), FREEZE, fault_kind=kind, **change)


def struck(kind: str, **change: Any) -> list[Event]:
    """The run in which learner c has this fault at 9.5 instead of being killed, and is lost at 10.5 all the same."""
    return altered(history(), KILL, fault_kind=kind, **change)


def healing(kind: str, learner: str, at: float, until: float, events: list[Event]) -> list[Event]:
    begun = said(events, at, FaultInjected(7, kind, learner, 1, 1, until - at), writer="chaos")
    return said(begun, until, FaultHealed(7, learner), writer="chaos")


def corrupted() -> list[Event]:
    """The first refusal of that kind and learner is at 21.5."""
    events = said(frozen("corrupt"), 21.0, refused("b", 1, "bad_digest"), refused("a", 1, "late"))
    return said(said(events, 21.5, refused("a", 1, "bad_digest")), 22.5, refused("a", 1, "bad_digest"))


def spoiled() -> list[Event]:
    events = said(struck("non_finite"), 9.7, refused("c", 1, "non_finite"))
    return said(events, 10.2, refused("c", 1, "non_finite"), Quarantined("c", 1, 3))


def misconfigured() -> list[Event]:
    events = struck("wrong_config")
    wrong = [e for e in events if not (is_a(LearnerAttached)(e) and e.fact.incarnation == 2)]
    return said(renumbered(wrong), 15.6, refused("c", 2, "wrong_config", "attach"), LearnerFenced("c", 2, "failed"))


def later(events: list[Event], which: Any, seconds: float) -> list[Event]:
    return [replace(event, at=event.at + seconds) if which(event) else event for event in events]


ABSENT = history(absent=[(12, "b"), (14, "b")])  # its steps 11 to 13, of 8 tokens each, are in no contribution
DOUBLE = healing("corrupt", "c", 9.0, 9.2, history())
Told = dict[str, Any]
FAULTS: dict[str, tuple[list[Event], str, int, Told]] = {  # the log, (kind target) of its rows, and what one row says
    "an injected kill is followed to the first contribution after it": (
        history(), "kill c, freeze a", 0,
        {"injected": True, "tokens_lost": 16, "at_s": 9.5, "detection_s": 1.0, "recovery_s": 8.7, "detect": 1.0,
         "decide": 1.0, "start": 1.0, "import": 1.0, "compile": 2.0, "state": 0.5, "first_contribution": 2.2},
    ),
    "a freeze is detected by its lease and recovers with a contribution after the heal": (
        history(), "kill c, freeze a", 1,
        {"injected": True, "tokens_lost": 0, "at_s": 20.5, "detection_s": 2.0, "recovery_s": 5.7},
    ),
    "a freeze shorter than the lease is never detected": (
        without(history(), is_a(LeaseExpired)), "kill c, freeze a", 1, {"detection_s": None, "recovery_s": 5.7},
    ),
    "one that has not healed has no recovery yet": (
        without(history(), is_a(FaultHealed)), "kill c, freeze a", 1, {"recovery_s": None, "tokens_lost": None},
    ),
    "a death that no fault explains counts from the last sign of life": (
        without(history(), KILL), "kill c, freeze a", 0,
        {"injected": False, "tokens_lost": 16, "at_s": 9.0, "detection_s": 1.5, "recovery_s": 9.2},
    ),
    "a freeze that ends in a restart is that freeze and no second death": (
        struck("freeze", duration_s=60.0), "freeze c, freeze a", 0, {"tokens_lost": 16, "recovery_s": 8.7},
    ),
    "a phase that was not said is null and the next carries its time": (
        without(history(), is_a(LearnerStarted, incarnation=2)), "kill c, freeze a", 0,
        {"start": None, "import": 2.0, "recovery_s": 8.7},
    ),
    "a kill that nobody has noticed yet has only its time": (
        [e for e in history() if e.at < BASE + 10.2], "kill c", 0,
        {"injected": True, "at_s": 9.5, "detection_s": None, "recovery_s": None, "tokens_lost": None, "detect": None},
    ),
    "a learner lost after the end is no fault": (
        inserted(history(), is_a(Evaluated, syncer_step=32), LearnerLost("b", 1, "died", "")),
        "kill c, freeze a", 0, {},
    ),
    "a kill that is said after its victim was missed still explains the death": (
        later(history(), KILL, 1.1), "kill c, freeze a", 0, {"injected": True, "detection_s": 0.0, "tokens_lost": 16},
    ),
    **{
        f"{kind} that heals is one row and no death": (
            frozen(kind), f"kill c, {kind} a", 1,
            {"injected": True, "at_s": 20.5, "recovery_s": 5.7, "first_contribution": 2.7},
        )
        for kind in ("slow", "straggle", "link", "corrupt")
    },
    "a cut link is detected by its lease": (frozen("link"), "kill c, link a", 1, {"detection_s": 2.0}),
    "and not by a later silence": (
        said(without(frozen("link"), is_a(LeaseExpired)), 28.0, LeaseExpired("a", 1, "stepping", 2.5)),
        "kill c, link a", 1, {"detection_s": None},
    ),
    "what came before the fault is no sign of it": (
        said(frozen("corrupt"), 20.0, refused("a", 1, "bad_digest")), "kill c, corrupt a", 1, {"detection_s": None},
    ),
    "damage is detected by the first refusal of that kind and learner": (
        corrupted(), "kill c, corrupt a", 1, {"detection_s": 1.0},
    ),
    "what was discarded while it lasted is lost": (
        healing("corrupt", "b", 10.2, 14.2, ABSENT), "kill c, corrupt b, freeze a", 1, {"tokens_lost": 24},
    ),
    "and nothing that was discarded later": (
        healing("corrupt", "b", 10.2, 12.2, ABSENT), "kill c, corrupt b, freeze a", 1, {"tokens_lost": 16},
    ),
    "nor anything that was merged": (
        healing("corrupt", "b", 10.2, 14.2, history()), "kill c, corrupt b, freeze a", 1, {"tokens_lost": 0},
    ),
    "a death after the link was up again is another fault": (
        healing("link", "c", 7.0, 8.0, without(history(), KILL)), "link c, kill c, freeze a", 0,
        {"detection_s": None, "recovery_s": 1.2},
    ),
    "a cut that is taken for a death is one row followed to its successor": (
        struck("link", duration_s=60.0), "link c, freeze a", 0,
        {"injected": True, "detection_s": 1.0, "recovery_s": 8.7},
    ),
    "numbers that are not finite are one row from the first refusal to the successor": (
        spoiled(), "non_finite c, freeze a", 0, {"detection_s": 0.2, "recovery_s": 8.7, "decide": 1.8},
    ),
    "one that dies of something else meanwhile is two rows": (
        DOUBLE, "corrupt c, kill c, freeze a", 1, {"injected": True},
    ),
    "also where nothing explains the death": (
        without(DOUBLE, KILL), "corrupt c, kill c, freeze a", 1, {"injected": False},
    ),
    "a wrong configuration explains the refused incarnation too": (
        misconfigured(), "wrong_config c, freeze a", 0, {"detection_s": 1.0},
    ),
    "without an injected fault the refused incarnation is a death like any other": (
        without(misconfigured(), is_a(FaultInjected, fault_kind="wrong_config")), "kill c, kill c, freeze a", 1,
        {"injected": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", FAULTS)
def test_the_table_of_faults(claim: str) -> None:
    events, rows, number, told = FAULTS[claim]
    found = summary(events)["faults"]
    assert ", ".join(f"{row['kind']} {row['target']}" for row in found) == rows
    phases = found[number]["recovery_phases"]
    flat = found[number] | phases
    assert {name: flat[name] for name in told} == pytest.approx(told, **CLOSE)
    if phases.get("compile"):
        assert sum(s for s in phases.values() if s is not None) == pytest.approx(flat["recovery_s"], **CLOSE)


ROWS = 1_000  # of the table of faults: sql/faults.sql


def test_older_rows_of_faults_are_counted_by_kind() -> None:
    faults = [
        Event("chaos", 9, 2 * number + later, BASE + 5.0 + number / 1000 + later / 2000, fact)
        for number in range(ROWS + 30)
        for later, fact in enumerate(
            (FaultInjected(99 + number, "freeze", "a", 1, 1, 0.0005), FaultHealed(99 + number, "a"))
        )
    ]
    told = summarise(parts([*script().events, *faults], 100), {}, [])
    own = len(summarise(script().events, {}, [])["faults"])
    assert len(told["faults"]) == ROWS
    assert sum(sums["rows"] for sums in told["faults_left_out"].values()) == 30 + own
    assert told["faults_left_out"]["freeze"]["tokens_lost"] == 0
