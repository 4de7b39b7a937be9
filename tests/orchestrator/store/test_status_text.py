"""The status in words, and the live view: whole on any terminal, whatever is missing."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli.summary import block
from orchestrator.cli.terminal import LiveView, picture
from orchestrator.store import status_text as words

STATUS: dict[str, Any] = {
    "run": {
        "name": "demo",
        "state": "running",
        "syncer_step": 520,
        "target_syncer_steps": 1042,
        "progress": 0.4991,
        "eval_loss": 2.1234,
        "loss_unit": "nats/image",
        "goodput": 0.871,
        "tokens_per_s": 20480.4,
        "eta_s": 95.0,
        "started_at": 1e9,
        "conditions": [
            {"type": "Quorum", "status": "true", "reason": "EnoughLearners", "message": "3 of 2 learners live"}
        ],
    },
    "learners": [
        {
            "name": f"learner-local-{index}",
            "pool": "local",
            "region": None,
            "state": "stepping",
            "pid": 4000 + index,
            "node": "n",
            "incarnation": 1,
            "step": 520 - index,
            "tokens_per_s": 5120.0,
            "loss": 2.2,
            "lease_age_s": 0.1,
            "version_lag": 1,
            "last_fault": None,
        }
        for index in range(4)
    ],
    "syncer": {"pid": 3999, "node": "n", "epoch": 1, "syncer_step": 520, "quorum": 2, "grace_s": 0.05},
    "written_at": 1e9,
}


def hollow(value: Any) -> Any:
    """The same shape with every leaf None."""
    if isinstance(value, dict):
        return {key: hollow(item) for key, item in value.items()}
    return [hollow(item) for item in value] if isinstance(value, list) else None


HOLLOW = [{}, {"run": None, "learners": None, "syncer": None}, hollow(STATUS)]


def changed(learner: int, **values: Any) -> dict[str, Any]:
    status = copy.deepcopy(STATUS)
    status["learners"][learner] |= values
    return status


def test_the_lines_say_what_is_asked_of_a_status() -> None:
    text = "\n".join(words.lines(STATUS))
    for part in (
        "demo: running",
        "syncer step 520 of 1,042 (49.9 %)",
        "4 of 4 learners stepping",
        "held-out loss 2.123 nats/image,",
        "goodput 87.1 %",
        "1:35 left",
        "quorum 2, grace 0.1 s",
        "Quorum: true, EnoughLearners: 3 of 2 learners live",
        "learner-local-3  stepping  517",
    ):
        assert part in text, text


def test_standbys_are_counted_where_there_are_any() -> None:
    assert "4 of 4 learners stepping, held-out" in words.headline(STATUS)
    assert "4 of 4 learners stepping and 2 standbys waiting, held-out" in words.headline(changed(1, standbys=2))


def test_a_task_that_names_no_unit_gets_none() -> None:
    silent = copy.deepcopy(STATUS)
    del silent["run"]["loss_unit"]
    assert "held-out loss 2.123, " in words.headline(silent)
    assert "1.700 (at the start 5.545)" in block(SUMMARY | {"loss_unit": ""}, "here")


@pytest.mark.parametrize("status", HOLLOW)
def test_what_is_missing_is_a_dash(status: dict[str, Any]) -> None:
    text = "\n".join(words.lines(status))
    assert "None" not in text
    assert "-: -, syncer step - of - (-)" in text
    assert words.progress(status) == 0.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1:00"),
        (3750.2, "1:02:30"),
        (-64.0, "-1:04"),
        (-3.0, "-3.0 s"),
        (None, "-"),
        (float("inf"), "-"),
    ],
)
def test_durations(value: float | None, shown: str) -> None:
    assert words.seconds(value) == shown


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 140])
@pytest.mark.parametrize("status", [STATUS, *HOLLOW])
def test_the_picture_fits_any_terminal(status: dict[str, Any], width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture(status, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    if width >= 80 and status is STATUS:
        assert {"lag", "fault"} <= set("\n".join(lines).split())


def test_a_terminal_gets_a_live_table() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=100, force_terminal=True, color_system=None, _environ={"TERM": "xterm"}))
    view.update(STATUS)
    view.update(changed(0, state="frozen", last_fault="freeze"))
    view.close()
    assert "frozen" in file.getvalue()
    assert "\x1b[" in file.getvalue()


def test_elsewhere_it_speaks_every_five_seconds_and_at_changes() -> None:
    file, now = io.StringIO(), [0.0]
    view = LiveView(Console(file=file, width=40), json_mode=True, clock=lambda: now[0])

    def said_at(second: float, status: dict[str, Any]) -> list[str]:
        file.truncate(0)
        file.seek(0)
        now[0] = second
        view.update(status)
        return file.getvalue().splitlines()

    assert said_at(0, STATUS)[-1].startswith("demo: running")
    assert said_at(4.9, STATUS) == []
    assert len(said_at(5.0, STATUS)) == 1
    killed = changed(2, state="restarting", last_fault="kill")
    assert said_at(6.0, killed)[:2] == ["learner-local-2: kill", "learner-local-2: stepping -> restarting"]
    assert said_at(7.0, killed) == []
    assert said_at(8.0, {}) != []
    view.close()


SUMMARY: dict[str, Any] = {
    "name": "demo",
    "ok": True,
    "state": "finished",
    "initial_eval_loss": 5.545,
    "loss_unit": "nats/token",
    "eval_loss": 1.7,
    "tokens": {
        "processed": 3300000,
        "committed": 3200000,
        "in_flight": 0,
        "discarded": {"killed": 60000, "overlap": 40000},
    },
    "syncer_steps": 1042,
    "commits": 1042,
    "rounds_per_fragment": 86,
    "wall_s": 185.0,
    "tokens_per_s": 17800.0,
    "availability": 0.97,
    "goodput_time": 0.88,
    "global_downtime_s": 0.0,
    "participation": {"mean": 0.93, "alive_mean": 0.96, "by_learner": {"learner-local-0": 0.99}},
    "faults": [
        {"kind": "kill", "target": "learner-local-1", "injected": True, "at_s": 42.0}
        | {"detection_s": 0.1, "recovery_s": 9.5},
        {"kind": "kill", "target": "learner-local-2", "injected": False, "at_s": 50.0}
        | {"detection_s": None, "recovery_s": None},
    ],
    "checks": [
        {"name": "books", "status": "pass", "reason": ""},
        {"name": "log", "status": "violated", "reason": "a gap after 17"},
        {"name": "closed", "status": "idle", "reason": "nobody was refused"},
    ],
}


def test_the_summary_block_tells_losses_tokens_faults_and_checks() -> None:
    text = block(SUMMARY, "/runs/demo")
    for part in (
        "1.700 nats/token (at the start 5.545)",
        "3,200,000 committed of 3,300,000 processed",
        "60,000 discarded: killed",
        "learner-local-0 99.0 %",
        "kill learner-local-1 at 42.0 s: detected after 0.1 s, recovered after 9.5 s",
        "(not injected): detected after -",
        "1 of 2 passed, 1 failed (log), 1 not exercised",
        "failed log: a gap after 17",
        "/runs/demo",
    ):
        assert part in text, text


def test_a_summary_of_nothing_is_still_a_block() -> None:
    assert "None" not in block(hollow(SUMMARY), "here")
    assert "NOT OK" in block({}, "here")


def test_a_pool_without_a_place_is_told_at_once_and_once_and_so_is_that_it_has_one() -> None:
    def status(*messages: str) -> dict[str, Any]:
        told = [
            {"type": "LearnersPlaced", "status": "False", "reason": "NoPlace", "message": each} for each in messages
        ]
        return {"run": {"name": "demo", "state": "running", "conditions": told}}

    out = io.StringIO()
    view = LiveView(Console(file=out, width=100), clock=lambda: 0.0)
    for each in (
        status(),
        status("pool a waits"),
        status("pool a waits"),
        status("pool a waits", "no quorum"),
        status(),
    ):
        view.update(each)
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("demo: running")]
    assert lines == ["pool a waits", "no quorum", "every learner has a place"]


def test_shards_have_a_line_each_with_what_the_store_refuses() -> None:
    shards = [{"pid": 7, "node": "ab" * 14, "trouble": ""}, {"pid": 8, "node": None, "trouble": "OSError: full"}, {}]
    status = STATUS | {"syncer": STATUS["syncer"] | {"shards": shards}}
    wanted = ["shard 0: pid 7, node abababab", "shard 1: pid 8, node -, OSError: full", "shard 2: pid -, node -"]
    assert words.shard_lines(status) == wanted
    assert set(wanted) < set(words.lines(status))
    assert words.shard_lines(STATUS) == []
