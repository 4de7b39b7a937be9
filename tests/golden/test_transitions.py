"""Runs make every move in the machines' transition tables, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from learners.protocol import learner
from learners.protocol.learner import Learner
from orchestrator.lifecycle import controller
from orchestrator.lifecycle.controller import Controller, Start
from outer.config import SyncConfig
from outer.protocol import events_effects as outer
from outer.protocol import open_step
from outer.protocol.events_effects import StopRequested
from outer.protocol.open_step import OpenStep
from outer.protocol.syncer import Budget
from tests.golden.bench import ALL, bench, merged, reading
from tests.golden.world import NetworkFaults, World

Moves = set[tuple[Any, Any]]
NAMES = ("a", "b", "c")


def written(table: Any) -> Moves:
    return {(state, other) for state, ways in table.items() for other in ways}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moves]:
    """The moves of open steps that this test makes."""
    made: Moves = set()
    plain = OpenStep.move

    def move(self: OpenStep, stage: open_step.Stage) -> None:
        made.add((self.stage, stage))
        plain(self, stage)

    monkeypatch.setattr(OpenStep, "move", move)
    yield made
    assert made <= written(open_step.TRANSITIONS)


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moves]:
    """The moves of learners that this test makes."""
    made: Moves = set()
    plain = Learner._enter

    def enter(self: Learner, now: float, phase: str) -> None:
        made.add((self.phase, phase))
        plain(self, now, phase)

    monkeypatch.setattr(Learner, "_enter", enter)
    yield made
    assert made <= written(learner.TRANSITIONS)


class Impatient(World):
    """Ticks once between any two events, before the syncer wants one: nothing may come of it."""

    checked_at, probes = 0.0, 0

    def _drive_outer(self, event: outer.Event) -> None:
        between, wake_at = (self.checked_at + self.now) / 2, self.syncer.wake_at
        if self.checked_at < between < self.now and (wake_at is None or between < wake_at):
            effects = self.syncer.handle(between, outer.Tick())
            assert effects == [], f"at {between} something was due, but wake_at was {wake_at}"
            self.probes += 1
        self.checked_at = self.now
        super()._drive_outer(event)


def storm(seed: int, kind: type[World] = World, **sync: Any) -> World:
    """A run with deaths, freezes, drains and a bad network, stopped at a random time."""
    config = {"P": 2, "H": 4, "tau": 2, "read_timeout_s": 0.4, "lease_s": 0.8, "grace": 0.3}
    world = kind(
        sync=SyncConfig.model_validate(config | sync),
        learners={"a": 0.1, "b": 0.13, "c": 0.21},
        quorum=2,
        budget=Budget(None, 10_000),
        seed=seed,
        network=NetworkFaults(lost=0.2, doubled=0.2, delay_s=0.1),
    )
    chance = Random(seed)
    for name in NAMES:
        world.start(name)
    for _ in range(8):
        name, at = chance.choice(NAMES), chance.uniform(0.5, 9.0)
        match chance.choice(["die", "freeze", "leave"]):
            case "die":
                world.at(at, lambda name=name: world.kill(name))  # type: ignore[misc]
                world.at(at + 0.2, lambda name=name: world.bury(name))  # type: ignore[misc]
                world.at(at + 0.9, lambda name=name: world.start(name))  # type: ignore[misc]
            case "freeze":
                world.at(at, lambda name=name: world.freeze(name, 1.5))  # type: ignore[misc]
            case "leave":
                world.at(at, lambda name=name: world.leave(name))  # type: ignore[misc]
                world.at(at + 2.0, lambda name=name: world.start(name))  # type: ignore[misc]
    world.run(10.0 + chance.random())
    world.start("a")  # it joins just when the run ends
    world._drive_outer(StopRequested("enough"))
    world.run(20.0)
    return world


def test_open_steps_and_learners_make_every_move_of_their_tables(steps: Moves, phases: Moves) -> None:
    for seed in range(6):
        storm(seed)
    for rare in (not_finite, dropped_in_grace, dropped_while_merging, dropped_while_merged):
        rare()
    assert written(open_step.TRANSITIONS) - steps == set()
    assert written(learner.TRANSITIONS) - phases == set()


@pytest.mark.parametrize("pacing", ["clock", "quorum"])
def test_nothing_falls_due_before_the_syncer_asks_to_be_woken(pacing: str) -> None:
    for seed in range(4):
        world = storm(seed, Impatient, pacing=pacing)
        assert isinstance(world, Impatient) and world.probes > 100


def not_finite() -> None:
    one = reading("a", "b", merges_itself=False, sync=ALL)
    one.answer("a", "b")
    one.do(merged(1, finite=False))


def dropped_in_grace() -> None:
    one = bench("a", "b", quorum=1, sync=ALL)
    one.now = 1.0
    one.step("a")
    one.do(StopRequested("enough"))


def dropped_while_merging() -> None:
    one = reading("a", "b", merges_itself=False, sync=ALL)
    one.answer("a", "b")
    one.do(StopRequested("enough"))


def dropped_while_merged() -> None:
    """Step 2 is merged and waits for step 1 to commit."""
    one = bench("a", "b", sync={"P": 4, "H": 4, "tau": 2} | ALL)
    for second in (1, 2):
        one.now = float(second)
        one.step("a", "b")
    one.answer("a", "b")  # the newest reads: those of step 2
    one.do(StopRequested("enough"))


def test_the_controller_makes_every_move_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under random calls in random order."""
    made: Moves = set()
    plain = controller.Unit.move

    def move(self: controller.Unit, state: controller.State) -> None:
        made.add((self.state, state))
        plain(self, state)

    monkeypatch.setattr(controller.Unit, "move", move)
    for seed in range(400):
        harass(Random(seed))
    assert made == written(controller.TRANSITIONS)


def harass(chance: Random) -> None:
    made, incarnations = Controller(NAMES, backoff_s=1.0, hang_s=2.0, unreachable_s=3.0), dict.fromkeys(NAMES, 0)
    for now in range(40):
        name = chance.choice(NAMES)
        at = (name, max(1, incarnations[name] - chance.choice([0, 0, 0, 1])))
        asked: list[controller.Action] = []
        match chance.randrange(12):
            case 0 | 1:
                asked = made.advance(float(now))
            case 2:
                made.answered(*at)
            case 3:
                made.lost(float(now), *at)
            case 4:
                made.left(*at)
            case 5:
                asked = made.silent(*at, chance.uniform(0.0, 4.0))
            case 6:
                asked = made.drain(name, "its node leaves") if chance.random() < 0.5 else made.unwant(name, "too many")
            case 7:
                made.want(name)
            case 8:
                made.finished(*at)
            case 9 | 10:
                made.probed(*at, chance.choice(["", "its node does not answer"]))
            case 11:
                made.reachable(*at)
        for action in asked:
            if isinstance(action, Start):
                incarnations[action.learner] += 1
                made.started(action.learner, incarnations[action.learner])


def test_a_move_that_is_not_in_the_table_is_an_assertion() -> None:
    step = OpenStep(1, 0, 0.0)
    with pytest.raises(AssertionError, match="COLLECTING"):
        step.move(open_step.Stage.MERGED)
    with pytest.raises(AssertionError, match="WAITING"):
        controller.Unit().move(controller.State.RUNNING)
