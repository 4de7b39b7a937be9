"""Pools that grow and shrink: what may be asked for, who is started and drained, and how time and shares count."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import PoolScaled
from orchestrator.lifecycle.actions import AskToLeave, End, Release, Start
from orchestrator.lifecycle.controller import Controller, State
from orchestrator.lifecycle.pools import LEARNERS_MAX, request_file, requested
from orchestrator.lifecycle.requests import problems
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store import watch
from orchestrator.store.readers import object_of
from orchestrator.store.run_store import RunStore
from tests.orchestrator.calling import invoke
from tests.orchestrator.histories import BASE, accounts_of, history
from tests.waiting import until


def recipe(**change: Any) -> Recipe:
    pools = [{"name": "east", "learners": 2, "min": 1, "max": 4}, {"name": "west", "learners": 2}]
    tables = {"name": "demo", "pools": pools, "budget": {"syncer_steps": 10}, "sync": {"quorum": 2}}
    return Recipe.model_validate(tables | change)


POOLS = {"east": 2, "west": 2}

# ------------------------------------------------------------------ what may be asked for


def test_what_cannot_be_is_refused_with_what_can() -> None:
    for pool, learners, local, told in (
        ("east", 0, False, "1 to 4"),
        ("east", 5, False, "1 to 4"),
        ("eastt", 2, False, 'did you mean "east"?'),
        ("west", LEARNERS_MAX + 1, False, f"0 to {LEARNERS_MAX}"),
        ("west", 5, True, "give 0 to 4"),  # what its Ray was made for
    ):
        [problem] = problems(recipe(), POOLS, pool, learners, local=local)
        assert told in problem.fix
    [problem] = problems(recipe(), {"east": 1, "west": 2}, "west", 0, local=False)
    assert "give at least 1" in problem.fix
    for change, field in (({"overlap": "strict"}, "sync.overlap"), ({"quorum": "all"}, "sync.quorum")):
        assert any(each.field == field for each in problems(recipe(sync=change), POOLS, "east", 3, False))
    for pool, learners in (("east", 1), ("east", 4), ("west", 4)):
        assert list(problems(recipe(), POOLS, pool, learners, local=True)) == []
    assert list(problems(recipe(), POOLS, "west", 5, local=False)) == []


def test_a_request_for_what_cannot_be_changes_nothing(tmp_path: Path) -> None:
    east, store = recipe().pools[0], RunStore(tmp_path)
    assert requested({"learners": 3}, east, 2, local=False) == 3
    for asked in (None, "many", -1, True, 2.0, [3], {"east": 3}, 0, 5, 10**9):
        assert requested({"learners": asked}, east, 2, local=False) == 2
    for content in ("", "{", "[]", "[1]", "1", "null", '"4"', "\x00", '{"learners": [1]}', "[" * 9999):
        store.write_text(request_file("east"), content)
        assert requested(object_of(store, request_file("east")), east, 2, local=False) == 2
    store.path("a-folder").mkdir()
    assert object_of(store, "a-folder") is None


def test_the_pool_of_a_learner_is_known_by_its_name_however_many_there_are() -> None:
    made = recipe()
    assert made.pool_of("learner-east-17").name == "east"
    for stranger in ("learner-north-0", "learner-east-", "east-0"):
        with pytest.raises(KeyError):
            made.pool_of(stranger)


# ------------------------------------------------------------------ who is started, who leaves


def running(*names: str) -> Controller:
    made = Controller(names, backoff_s=1.0, hang_s=20.0)
    made.advance(0.0)
    for name in names:
        made.started(name, 1)
        made.answered(name, 1)
    return made


def test_one_that_is_not_wanted_drains_or_is_not_started_and_stays_away_until_it_is_wanted_again() -> None:
    made = running("a", "b")
    assert made.unwant("b", "scaled") == [AskToLeave("b", 1, "scaled")]
    assert made.unwant("b", "scaled") == [], "asked once"
    made.left("b", 1)
    assert made.advance(1e9) == []
    assert made.wanted == ["a"]
    made.unwant("a", "scaled")
    made.want("a")
    assert made.advance(1e9) == [], "it is still there"
    made.left("a", 1)
    assert made.advance(1e9) == [Start("a")]
    early = Controller(["a"], backoff_s=1.0, hang_s=20.0)
    assert early.unwant("a", "scaled") == early.advance(0.0) == [], "one never started is just not started"
    made = running("a")
    assert made.drain("a", "its node goes") == [AskToLeave("a", 1, "its node goes")]
    made.left("a", 1)
    assert made.advance(0.0) == [Start("a")], "it is wanted still"


def test_one_that_dies_or_hangs_while_it_drains_is_not_restarted_when_unwanted() -> None:
    made = running("a", "b")
    made.unwant("a", "scaled")
    made.unwant("b", "scaled")
    made.probed("a", 1, "")
    assert made.silent("a", 1, 30.0) == [End("a", 1, "silent for 30.0 s")]
    assert made.lost(1.0, "a", 1) is not None
    assert made.lost(1.0, "b", 1) is not None
    assert {unit.state for unit in made.units.values()} == {State.DONE}


def of_pools(local: bool = False, **change: Any) -> Controller:
    made = recipe(**change)
    controller = Controller(
        made.learners, backoff_s=1.0, hang_s=20.0, pools=made.pools, quorum=made.quorum, local=local
    )
    controller.advance(0.0)
    for name in made.learners:
        controller.started(name, 1)
        controller.answered(name, 1)
    return controller


def test_a_pool_that_grows_wants_more_learners_and_one_that_shrinks_drains_its_last() -> None:
    made = of_pools()
    added = ("learner-east-2", "learner-east-3")
    assert made.scale(1.0, "east", {"learners": 4}) == [PoolScaled("east", 4, added, ())]
    assert made.advance(1.0) == [Start("learner-east-2"), Start("learner-east-3")]
    assert made.scale(2.0, "east", {"learners": 4}) == [], "heard once"
    assert made.scale(3.0, "east", {"learners": 1}) == [
        PoolScaled("east", 1, (), ("learner-east-1", *added)),
        AskToLeave("learner-east-3", 0, "pool east is scaled to 1"),
        AskToLeave("learner-east-2", 0, "pool east is scaled to 1"),
        AskToLeave("learner-east-1", 1, "pool east is scaled to 1"),
    ]
    made = of_pools()
    made.lost(0.0, "learner-east-1", 1)
    assert made.scale(1.0, "east", {"learners": 1})[1:] == [Release("learner-east-1")], "it waits for its next start"


def test_two_requests_that_together_leave_fewer_than_the_quorum_are_not_both_met() -> None:
    made = of_pools(sync={"quorum": 3})
    assert made.scale(1.0, "east", {"learners": 1})
    assert made.scale(1.0, "west", {"learners": 1}) == []
    assert made.pools.sizes == {"east": 1, "west": 2}


# ------------------------------------------------------------------ time and shares


def scaled(*events: tuple[float, PoolScaled]) -> list[Event]:
    """The run of histories.py, in which learners were wanted for a part of it only."""
    said = [Event("orchestrator", 9, number, BASE + at, fact) for number, (at, fact) in enumerate(events)]
    return [*history(), *said]


def test_time_and_participation_count_while_a_learner_is_wanted() -> None:
    whole = scaled()
    said = ((16.0, PoolScaled("p", 4, ("d",), ())), (20.0, PoolScaled("p", 3, (), ("b",))))
    part = scaled(*said, (22.0, PoolScaled("p", 2, (), ("d",))))
    before, after = accounts_of(whole), accounts_of(part)
    assert before is not None and after is not None
    assert sum(after.seconds["b"].values()) == pytest.approx(20.0, abs=1e-5)
    assert sum(after.seconds["a"].values()) == pytest.approx(sum(before.seconds["a"].values()))
    assert sum(after.seconds["d"].values()) == pytest.approx(6.0, abs=1e-5)
    assert sum(after.categories.values()) == pytest.approx(1.0)
    shares, fewer = (summarise(log, {}, [])["participation"]["by_learner"] for log in (whole, part))
    assert [*fewer] == ["a", "b", "c", "d"] and fewer["d"] == 0.0
    assert fewer["a"] == shares["a"]


# ------------------------------------------------------------------ the command


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    made = RunStore.named("demo")
    made.write_text("config.toml", dump(recipe()))
    status(made, "running", POOLS)
    return made


def status(store: RunStore, state: str, pools: dict[str, int], age_s: float = 0.0) -> None:
    rows = [
        {"name": f"learner-{pool}-{index}", "pool": pool, "state": "stepping"}
        for pool, count in pools.items()
        for index in range(count)
    ]
    run = {"name": "demo", "state": state, "pools": pools}
    store.write_json("status.json", {"run": run, "learners": rows, "written_at": time.time() - age_s})


def test_scale_leaves_a_request_and_waits_until_it_is_heard(store: RunStore) -> None:
    def hear() -> None:
        until(lambda: store.read_json(request_file("east")) is not None, "a request", pause_s=0.01)
        status(store, "running", POOLS | {"east": 4})

    thread = threading.Thread(target=hear)
    thread.start()
    result = invoke("scale", "east", "4", "demo", "--wait", "--json")
    thread.join()
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"pool": "east", "before": 2, "learners": 4, "settled": True}
    assert store.read_json(request_file("east"))["learners"] == 4
    assert store.read_json(request_file("west")) is None


def test_scale_refuses_before_it_asks(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("scale", "east", "9", "demo").exit_code == 2
    assert invoke("scale", "west", "9999999", "demo").exit_code == 2
    store.write_json("cluster.json", {"token_path": "/tmp/token"})
    local = invoke("scale", "west", "5", "demo")
    assert local.exit_code == 2 and "its local Ray" in local.stderr
    status(store, "finished", POOLS)
    ended = invoke("scale", "east", "3", "demo")
    assert ended.exit_code == 2 and "has finished" in ended.stderr
    monkeypatch.setattr(watch, "NEWS_S", 0.0)
    status(store, "running", POOLS, age_s=watch.SILENT_S + 1)
    dead = invoke("scale", "east", "3", "demo")
    assert dead.exit_code == 2 and "starting, ending or dead" in dead.stderr
    assert not list(store.root.glob("scale*"))


def test_a_host_whose_clock_is_behind_scales_all_the_same(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "NEWS_S", 60.0)
    status(store, "running", POOLS, age_s=3600)
    first, heard = store.read_json("status.json"), threading.Event()

    def write_on(seconds: float) -> None:
        """The run goes on while the command looks, and heeds the request once it is there."""
        asked = store.read_json(request_file("east")) is not None
        status(store, "running", POOLS | ({"east": 3} if asked else {}), age_s=3599)
        heard.set()

    monkeypatch.setattr(watch.time, "sleep", write_on)
    assert invoke("scale", "east", "3", "demo").exit_code == 0
    assert heard.is_set() and store.read_json("status.json") != first
