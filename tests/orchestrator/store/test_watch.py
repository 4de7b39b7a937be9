"""Following a run through its folder: to its summary, or to the word that nothing more will come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store import watch
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import LOOK_S, LOST_S, SUMMARY_S, RunLost, follow
from tests.orchestrator.calling import invoke

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
    assert world.follow() == {"ok": True} and world.now == pytest.approx(10, abs=1), "at once, of a run that has ended"


def test_a_long_end_is_waited_for_as_long_as_statuses_come(world: World) -> None:
    for second in range(0, 7200, 100):
        world.at(second, lambda at=second: world.status("ending", at=at))
    world.status("running", at=0)
    world.at(7200, lambda: world.store.write_json("summary.json", {"ok": True}))
    world.at(7200, lambda: world.status("finished", at=7200))
    assert world.follow() == {"ok": True}
    assert world.now == pytest.approx(7200, abs=1)


@pytest.mark.parametrize(
    ("state", "at", "says", "after_s"),
    [
        ("running", 0, "no status for 5:0", LOST_S),
        ("running", -10 * LOST_S, "no status for 50:", LOOK_S),
        ("failed", 0, "left no summary", SUMMARY_S - 0.5),
    ],
)
def test_a_run_that_falls_silent_is_given_up(world: World, state: str, at: float, says: str, after_s: float) -> None:
    """At once if its newest status is old and no other appears in a short look."""
    world.status(state, at=at)
    world.store.write_text("summary.json", "{")  # damaged: none
    with pytest.raises(RunLost, match=says):
        world.follow()
    assert after_s < world.now < after_s + 2


def test_a_clock_that_is_behind_takes_no_run_for_dead(world: World) -> None:
    world.status("running", at=-10 * LOST_S)
    world.at(2, lambda: world.status("running", at=-10 * LOST_S + 2))
    world.at(LOST_S, lambda: world.status("finished", at=0))
    world.at(LOST_S + 1, lambda: world.store.write_json("summary.json", {"ok": True}))
    assert world.follow() == {"ok": True}


@pytest.mark.parametrize(
    ("lose", "says"),
    [
        (lambda store: shutil.rmtree(store.root, ignore_errors=True), "has been removed"),
        (lambda store: store.write_text("status.json", "[]"), "is damaged"),
        (lambda store: store.path("status.json").unlink(), "holds no status"),
    ],
)
def test_a_folder_that_goes_away_while_it_is_followed_is_a_run_that_is_lost(
    world: World, lose: Callable[[RunStore], None], says: str
) -> None:
    world.status("running", at=0)
    world.at(1, lambda: lose(world.store))
    with pytest.raises(RunLost, match=says):
        world.follow()
    assert world.now == pytest.approx(LOOK_S, abs=2.0)


def test_a_status_that_is_damaged_for_a_moment_is_no_loss(world: World) -> None:
    world.status("running", at=0)
    for second in range(1, 60):
        world.at(second, lambda: world.store.write_text("status.json", ""))
        world.at(second + 0.5, lambda at=second: world.status("finished" if at == 59 else "running", at=at))
    world.store.write_json("summary.json", {"ok": True})
    assert world.follow() == {"ok": True} and world.now > 59


def test_status_follow_ends_with_the_code_of_the_run_or_leaves_it_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, follow = RunStore(tmp_path / "run"), ["status", "--follow", str(tmp_path / "run")]
    checks = [{"name": "books", "status": "violated", "reason": "x"}]
    for ok, told, code in ((True, [], 0), (False, checks, 5)):
        summary = {"name": "a", "ok": ok, "state": "finished", "checks": told}
        store.write_json("status.json", {"run": {"name": "a", "state": "finished"}, "written_at": 0.0})
        store.write_json("summary.json", summary)
        result = invoke(*follow, "--json")
        assert (result.exit_code, json.loads(result.stdout)) == (code, summary)
    raised: list[BaseException] = []
    monkeypatch.setattr(watch, "follow", lambda *_: (_ for _ in ()).throw(raised[-1]))
    for error, code, says in ((KeyboardInterrupt(), 130, "goes on"), (RunLost("x"), 4, "lost")):
        raised.append(error)
        result = invoke(*follow)
        assert result.exit_code == code and says in result.stderr and "Traceback" not in result.stderr
    assert not store.path("stop").exists()
