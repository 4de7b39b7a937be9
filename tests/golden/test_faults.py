"""Both machines: a learner that is slow, cut off, damaged, not finite or of another recipe harms nobody and heals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from learners.protocol import events_effects as unit
from learners.protocol.facts import StateReceived, StepFinished
from orchestrator.checkers import suite
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from outer.config import SyncConfig
from outer.protocol.facts import (
    Committed,
    LearnerAttached,
    LeaseExpired,
    LeaseRenewed,
    Quarantined,
    ReadFailed,
    Refused,
)
from outer.protocol.messages import Contribution
from outer.protocol.syncer import Budget
from tests.golden.world import Unit, World

T = TypeVar("T")
H = 8
BEGIN, END = 10.0, 16.0  # of every fault
VICTIM = "c"


class Faulty(World):
    """A world in which what learner c sends may be held back or spoiled from BEGIN to END."""

    cut = False
    spoil: Callable[[Contribution], Contribution] | None = None

    @property
    def _struck(self) -> bool:
        return BEGIN <= self.now < END

    def _to_syncer(self, event: Any, sure: bool = False) -> None:
        if self._struck and getattr(event, "learner", "") == VICTIM:
            if self.cut:
                self.at(END, lambda: World._to_syncer(self, event, sure))
                return
            if self.spoil is not None and isinstance(event, Contribution):
                event = self.spoil(event)
        super()._to_syncer(event, sure)

    def _to_learner(self, name: str, incarnation: int, event: Any, sure: bool = False) -> None:
        if self._struck and self.cut and name == VICTIM:
            self.at(END, lambda: World._to_learner(self, name, incarnation, event, sure))
        else:
            super()._to_learner(name, incarnation, event, sure)

    def _fetch(self, each: Unit, fragment: int, version: int) -> None:
        if self._struck and self.cut and each.machine.name == VICTIM:
            self.at(END, lambda: World._fetch(self, each, fragment, version))
        else:
            super()._fetch(each, fragment, version)

    def slow(self, times: float) -> None:
        self._speed[VICTIM] *= times


@pytest.fixture
def world() -> Faulty:
    config = SyncConfig.model_validate({"P": 2, "H": H, "tau": 2, "read_timeout_s": 0.3, "lease_s": 0.8})
    made = Faulty(
        sync=config,
        learners={"a": 0.1, "b": 0.11, VICTIM: 0.12},
        quorum=1,
        budget=Budget(None, 10_000),
        span_steps=100,
    )
    for name in ("a", "b", VICTIM):
        made.start(name)
    made.run(BEGIN)
    return made


def assert_sound(world: World) -> None:
    """Every promise is kept, and no step is in the global parameters twice."""
    numbers: dict[tuple[str, int], int] = {}
    events = []
    for said in world.said:
        key = (said.writer, said.incarnation)
        numbers[key] = numbers.get(key, -1) + 1
        events.append(Event(*key, numbers[key], said.at, said.fact))
    verdicts = suite.check([*events, Event("orchestrator", 1, 0, world.now + 1.0, RunFinished("stopped", "enough"))])
    unknown = {"accounted.time"}  # nobody says here when learners were asked for
    assert [verdict for verdict in verdicts if not verdict.stands and verdict.name not in unknown] == []
    assert [verdict for verdict in verdicts if verdict.status == "violated"] == []
    assert {count for value in world.values for count in value.values()} == {1}


def facts(world: World, kind: type[T], since: float = 0.0, until: float = 1e9) -> list[T]:
    return [said.fact for said in world.said if isinstance(said.fact, kind) and since <= said.at < until]


def refusals(world: World) -> set[tuple[str, str, str]]:
    return {(fact.learner, fact.message, fact.reason) for fact in facts(world, Refused)}


def weights(world: World, since: float, until: float) -> list[float]:
    """The victim's weight in each commit; 0 where it took no part."""
    shares = [{one.learner: one.weight for one in fact.participants} for fact in facts(world, Committed, since, until)]
    return [share.get(VICTIM, 0.0) for share in shares]


def test_one_whose_steps_outlast_a_read_takes_part_all_the_same() -> None:
    """It is the last to report, so that every read comes right after its boundary; and learners hear of few steps."""
    sync = SyncConfig.model_validate(
        {"P": 2, "H": 12, "tau": 1, "grace": "infinite", "read_timeout_s": 0.25, "lease_s": 2.0}
    )
    world = World(sync=sync, learners={"a": 0.1, VICTIM: 0.3}, quorum=1, budget=Budget(None, 10_000), span_steps=100)
    for name in ("a", VICTIM):
        world.start(name)
    world.run(60.0)
    commits = [[one.learner for one in fact.participants] for fact in facts(world, Committed, 5.0)]
    assert len(commits) > 20
    assert sum(VICTIM in names for names in commits) > 0.9 * len(commits)
    assert_sound(world)


def test_a_slow_learner_weighs_less_and_the_outer_rate_stays(world: Faulty) -> None:
    world.slow(4.0)
    world.run(END)
    world.slow(0.25)
    world.run(END + 6.0)
    before, during, after = (weights(world, *span) for span in ((4.0, BEGIN), (BEGIN, END), (END + 1.0, END + 7.0)))
    assert len(during) >= 0.8 * len(before)
    mean = [sum(each) / len(each) for each in (before, during, after)]
    assert mean[0] == pytest.approx(1 / 3, abs=0.05)
    assert mean[1] < 0.5 * mean[0]
    assert mean[2] == pytest.approx(mean[0], abs=0.05)
    assert refusals(world) == set()
    assert_sound(world)


def test_a_learner_that_is_cut_off_loses_its_lease_and_what_comes_late_is_refused(world: Faulty) -> None:
    world.cut = True
    world.run(END + 4.0)
    (expired,), (renewed,) = facts(world, LeaseExpired), facts(world, LeaseRenewed)
    assert expired.learner == renewed.learner == VICTIM
    assert facts(world, LeaseExpired, BEGIN + 0.7, BEGIN + 1.0) == [expired], "nobody waits longer than its lease"
    assert {fact.reason for fact in facts(world, ReadFailed)} >= {"timeout"}
    assert (VICTIM, "contribution", "late") in refusals(world)
    assert len(facts(world, StepFinished, BEGIN, END)) > 100, "all of them train on"
    out, back = weights(world, BEGIN + 0.5, END), weights(world, END, END + 4.0)
    assert len(out) > 10 and set(out) == {0.0}
    assert any(weight > 0.0 for weight in back[:2]), "within one round of two fragments"
    assert_sound(world)


def test_a_damaged_contribution_never_merges_and_is_no_reason_to_start_anew(world: Faulty) -> None:
    world.spoil = lambda contribution: replace(contribution, payload=None, defect="bad_digest")
    world.run(END + 4.0)
    assert refusals(world) == {(VICTIM, "contribution", "bad_digest")}
    assert len(facts(world, Refused)) > 10
    assert set(weights(world, BEGIN + 0.5, END)) == {0.0}
    assert min(weights(world, END + 1.0, END + 4.0)) > 0.0
    assert facts(world, Quarantined) == []
    assert_sound(world)


def test_a_learner_that_is_not_finite_is_quarantined_and_starts_anew_from_a_peer(world: Faulty) -> None:
    world.spoil = lambda contribution: replace(contribution, payload=None, defect="non_finite")
    world.run(END, stop=lambda: bool(world.units[VICTIM].exited))
    assert world.units[VICTIM].exited.startswith("failed")
    assert [fact.reason for fact in facts(world, Refused)] == ["non_finite"] * 3
    assert [(fact.learner, fact.incarnation) for fact in facts(world, Quarantined)] == [(VICTIM, 1)]
    world.kill(VICTIM)
    world.bury(VICTIM)
    world.spoil = None
    world.start(VICTIM)
    world.run(END + 4.0)
    (started,) = [s.fact for s in world.said if isinstance(s.fact, StateReceived) and s.incarnation == 2]
    assert (started.source, started.donor in ("a", "b")) == ("peer", True)
    assert weights(world, END + 1.0, END + 4.0)[-1] > 0.0
    assert_sound(world)


def test_a_learner_of_another_recipe_is_refused_by_the_field_and_the_others_go_on(
    world: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kill(VICTIM)
    world.bury(VICTIM)
    with monkeypatch.context() as another:
        another.setattr("tests.golden.world.MANIFEST", {"sync.H": 8})
        world.start(VICTIM)
    world.run(END)
    (refused,) = facts(world, Refused)
    assert (refused.learner, refused.incarnation, refused.message) == (VICTIM, 2, "attach")
    assert (refused.reason, refused.detail) == ("wrong_config", "sync.H: here 4, there 8")
    assert len(facts(world, Committed, BEGIN, END)) >= 0.8 * len(facts(world, Committed, 4.0, BEGIN))
    assert isinstance(world.units[VICTIM].next, unit.Hold), "it does not step"
    world.kill(VICTIM)
    world.bury(VICTIM)
    world.start(VICTIM)
    world.run(END + 4.0)
    assert [fact.incarnation for fact in facts(world, LearnerAttached) if fact.learner == VICTIM] == [1, 3]
    assert weights(world, END + 1.0, END + 4.0)[-1] > 0.0
    assert_sound(world)
