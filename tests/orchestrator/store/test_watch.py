"""Following a run through its folder: to its summary, or to the word that nothing more will come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import build
from orchestrator.store import watch
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import LOOK_S, LOST_S, SUMMARY_S, RunLost, follow

WALL = 1_000_000.0


class World:
    """A store, time that passes only while the follower waits, and what happens at which second of it."""

    def __init__(self, folder: Path) -> None:
        self.store = RunStore(folder)
        self.now = 0.0
        self.seen: list[Any] = []
        self._events: list[tuple[float, Callable[[], None]]] = []

    def status(self, state: str, at: float) -> None:
        self.store.write_json("status.json", {"run": {"state": state}, "written_at": WALL + at})

    def at(self, second: float, happens: Callable[[], None]) -> None:
        self._events.append((second, happens))

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        for event in [event for event in self._events if event[0] <= self.now]:
            self._events.remove(event)
            event[1]()

    def follow(self) -> dict[str, Any]:
        return follow(
            self.store,
            lambda status: self.seen.append(status["run"]["state"]),
            clock=lambda: self.now,
            pause=self._pause,
            wall=lambda: WALL + self.now,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_status_is_shown_once_and_the_summary_is_waited_for(world: World) -> None:
    world.status("running", at=0)
    world.at(2, lambda: world.status("running", at=2))
    world.at(4, lambda: world.status("finished", at=4))
    world.at(10, lambda: world.store.write_json("summary.json", {"ok": True}))
    assert world.follow() == {"ok": True}
    assert world.seen == ["running", "running", "finished"]
    assert world.now == pytest.approx(10, abs=1)


def test_a_long_end_is_waited_for_as_long_as_statuses_come(world: World) -> None:
    for second in range(0, 7200, 100):
        world.at(second, lambda at=second: world.status("ending", at=at))
    world.status("running", at=0)
    world.at(7200, lambda: world.store.write_json("summary.json", {"ok": True}))
    world.at(7200, lambda: world.status("finished", at=7200))
    assert world.follow() == {"ok": True}
    assert world.now == pytest.approx(7200, abs=1)


def test_a_run_that_has_ended_is_summed_up_at_once(world: World) -> None:
    world.status("stopped", at=-9999)
    world.store.write_json("summary.json", {"ok": False})
    assert world.follow() == {"ok": False}
    assert world.now == 0


def test_a_run_that_falls_silent_is_given_up(world: World) -> None:
    world.status("running", at=0)
    with pytest.raises(RunLost, match="no status for 5:0"):
        world.follow()
    assert LOST_S < world.now < LOST_S + 2


def test_an_old_status_is_believed_after_a_short_look(world: World) -> None:
    world.status("running", at=-10 * LOST_S)
    with pytest.raises(RunLost, match="no status for 50:"):
        world.follow()
    assert LOOK_S < world.now < LOOK_S + 2


def test_a_clock_that_is_behind_takes_no_run_for_dead(world: World) -> None:
    world.status("running", at=-10 * LOST_S)
    world.at(2, lambda: world.status("running", at=-10 * LOST_S + 2))
    world.at(LOST_S, lambda: world.status("finished", at=0))
    world.at(LOST_S + 1, lambda: world.store.write_json("summary.json", {"ok": True}))
    assert world.follow() == {"ok": True}


def test_an_end_without_a_summary_is_said_after_a_while(world: World) -> None:
    world.status("failed", at=0)
    with pytest.raises(RunLost, match="left no summary"):
        world.follow()
    assert SUMMARY_S <= world.now < SUMMARY_S + 2


# ------------------------------------------------------------------ the command

CHECKS = [{"name": "books", "status": "violated", "reason": "x"}]


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        ({"ok": True, "state": "finished", "checks": []}, 0),
        ({"ok": False, "state": "finished", "checks": CHECKS}, 5),
    ],
)
def test_status_follow_ends_with_the_code_of_the_run(tmp_path: Path, summary: dict[str, Any], code: int) -> None:
    store = RunStore(tmp_path / "run")
    store.write_json("status.json", {"run": {"name": "a", "state": summary["state"]}, "written_at": 0.0})
    store.write_json("summary.json", summary | {"name": "a"})
    result = CliRunner().invoke(build(), ["status", "--follow", str(store.root), "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout) == summary | {"name": "a"}


@pytest.mark.parametrize(("raised", "code", "says"), [(KeyboardInterrupt(), 130, "goes on"), (RunLost("x"), 4, "lost")])
def test_status_follow_leaves_a_run_going_and_says_when_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, says: str
) -> None:
    def interrupted(*_: Any) -> Any:
        raise raised

    monkeypatch.setattr(watch, "follow", interrupted)
    store = RunStore(tmp_path / "run")
    store.write_json("status.json", {"run": {"name": "a", "state": "running"}, "written_at": 0.0})
    result = CliRunner().invoke(build(), ["status", "--follow", str(store.root)])
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not store.path("stop").exists()
