"""Scripts make every move in the machines' transition tables, and no other is made."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from learners.protocol import learner
from learners.protocol.events_effects import Resume
from learners.protocol.learner import Learner
from orchestrator.lifecycle import controller
from orchestrator.lifecycle.controller import Controller, Start
from outer.protocol import open_step
from outer.protocol.events_effects import Fence, StopRequested, Tick
from outer.protocol.messages import Drain, Stop, Welcome
from outer.protocol.open_step import OpenStep
from tests.golden.bench import ALL, bench, merged, reading
from tests.golden.loop import Loop, joined

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


def test_open_steps_and_learners_make_every_move_of_their_tables(steps: Moves, phases: Moves) -> None:
    for script in (
        committed_and_passed,
        not_finite,
        unread,
        quorum_lost_in_grace,
        grace_over,
        dropped,
        merged_and_dropped,
    ):
        script()
    stepping, draining, joining = joined(), joined(), Loop()
    stepping.do(Stop(1, "enough"))
    stepping.step()
    draining.step()
    draining.do(Drain(1, 3, "scaled down", 60.0))
    draining.step()
    draining.do(Stop(1, "enough"), Resume())
    joining.compile()
    joining.do(Welcome(1, 0, 0.0, (0, 0)), Stop(1, "enough"), Resume())
    assert written(open_step.TRANSITIONS) - steps == set()
    assert written(learner.TRANSITIONS) - phases == set()


def committed_and_passed() -> None:
    for fragments in (1, 4):
        bench("a", "b", sync={"P": fragments, "H": 4, "tau": 1, "grace": 0.5}).commit("a", "b")


def not_finite() -> None:
    one = reading("a", "b", merges_itself=False, sync=ALL)
    one.answer("a", "b")
    one.do(merged(1, finite=False))


def unread() -> None:
    """Nobody answers in time."""
    one = reading("a", "b")
    one.now += 60.0
    one.do(Tick())


def quorum_lost_in_grace() -> None:
    one = bench("a", "b", "c", sync={"grace": 5.0})
    one.now = 1.0
    one.step("a", "b")
    one.do(Fence("b", 1, "killed"))
    one.now = 6.0
    one.do(Tick())
    one.step("c")  # a and c are a quorum, and all that live
    assert one.asked(1) == ["a", "c"]


def grace_over() -> None:
    one = bench("a", "b", quorum=1, sync={"grace": 0.5})
    one.now = 1.0
    one.step("a")
    one.now = 1.5
    one.do(Tick())
    assert one.asked(1) == ["a"]


def dropped() -> None:
    """At every stage up to merging."""
    collecting, grace = bench("a", "b", sync=ALL), bench("a", "b", quorum=1, sync=ALL)
    for one in (collecting, grace):
        one.now = 1.0
        one.step("a")
    read, merging = reading("a", "b"), reading("a", "b", merges_itself=False, sync=ALL)
    merging.answer("a", "b")
    for one in (collecting, grace, read, merging):
        one.do(StopRequested("enough"))


def merged_and_dropped() -> None:
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
