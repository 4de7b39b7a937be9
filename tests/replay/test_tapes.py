"""Tapes that the simulator writes: real training follows them, to the same bits every time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
from typer.testing import CliRunner

import outer.protocol.open_step
from chaos.simulation.hostile_tape import HOSTILE
from chaos.simulation.profile import EVERYBODY, Options
from chaos.simulation.recipes import options
from chaos.simulation.tape import Simulated, record
from learners.protocol.facts import StateReceived, StepFinished
from learners.training.tree import deal
from orchestrator.accounting.verdicts import sound
from orchestrator.checkers.state import INCARNATIONS_KEPT
from orchestrator.checkers.suite import check, check_run
from orchestrator.cli.app import build
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultHealed, FaultInjected, LearnerLost, LearnerRequested, RunStarted
from orchestrator.eventlog.reader import read_run
from orchestrator.recipe.config import FaultKind, Recipe
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import record as tape_of
from orchestrator.simulation.tape_log import write
from orchestrator.store.readers import recipe_of
from orchestrator.store.run_store import RunStore
from outer.numeric.parameters import GlobalParameters, Proposal
from outer.protocol.facts import Committed, Finished, LeaseExpired, Refused
from tests.replay.shaken import Points, recipe

KILL = {"kind": "kill", "learner": "learner-a-1", "at_step": 12}


def wanted(*faults: dict[str, Any], slowdown: float = 2.0, **changes: Any) -> Recipe:
    """Two learners of pool a, and a slow one of pool b."""
    raw = recipe().canonical()
    raw["pools"][1]["slowdown"] = slowdown
    return Recipe.model_validate(raw | {"chaos": {"faults": list(faults)}} | changes)


def simulated(made: Recipe, seed: int = 0, profile: str = "calm") -> list[Event]:
    return run(made, seed, profile).events


def run(made: Recipe, seed: int = 0, profile: str = "calm") -> Simulated:
    return record(made, options_of(made, seed, profile))


def options_of(made: Recipe, seed: int = 0, profile: str = "calm") -> Options:
    task = Points(made.data, made.seed)
    return options(made, deal(task, made.sync), task.tokens, seed=seed, profile=profile, step_s=1.0, startup_s=4.0)


def played(made: Recipe, events: Sequence[Event]) -> Replayer:
    player = Replayer(tape_of(events), made, Points(made.data, made.seed))
    for _ in player.play():
        pass
    return player


def facts(events: Sequence[Event], kind: type[Any]) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


# ------------------------------------------------------------------ training follows the simulation


def test_real_training_merges_what_was_simulated_and_twice_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wanted(KILL)
    events = simulated(made)
    commits = facts(events, Committed)
    merged: list[tuple[int, int, list[float]]] = []
    propose = GlobalParameters.propose

    def noted(self: GlobalParameters, fragment: int, payloads: list[Any], weights: list[float], *more: Any) -> Proposal:
        merged.append((fragment, len(payloads), weights))
        return propose(self, fragment, payloads, weights, *more)

    monkeypatch.setattr(GlobalParameters, "propose", noted)
    first, second = played(made, events), played(made, events)
    assert first.finish() == second.finish()
    due = [(each.fragment, len(each.participants), [one.weight for one in each.participants]) for each in commits]
    assert merged == 2 * due and len(due) == 40, "five fragments in a round of six, 48 steps"
    assert first.tally.computed["state"] == 1, "the killed one came back with a peer's state"
    assert first.tally.compared == Counter(), "there is nothing to compare with"
    assert first.finish() != played(made, simulated(wanted(slowdown=1.0))).finish(), "what happens decides the numbers"


def test_the_recipe_decides_who_is_slow_who_dies_and_what_weighs_how_much() -> None:
    events = simulated(wanted(KILL))
    steps = Counter(event.writer for event in events if isinstance(event.fact, StepFinished))
    assert 0.4 < steps["learner-b-0"] / steps["learner-a-0"] < 0.6
    [death] = facts(events, LearnerLost)
    assert (death.learner, death.incarnation, death.cause) == ("learner-a-1", 1, "died")
    [origin] = [event for event in events if isinstance(event.fact, StateReceived) and event.incarnation == 2]
    assert (origin.writer, origin.fact.source) == ("learner-a-1", "peer")
    [injected] = facts(events, FaultInjected)
    assert (injected.fault_kind, injected.target, injected.incarnation) == ("kill", "learner-a-1", 1)
    for commit in facts(events, Committed):
        raw = [one.tokens**2 / one.steps for one in commit.participants]
        assert [one.weight for one in commit.participants] == pytest.approx([each / sum(raw) for each in raw])
        assert all(one.tokens == one.steps * 4 * (4 if "-b-" in one.learner else 2) for one in commit.participants)
    assert sound(check(events))


def test_a_learner_that_dies_over_and_over_breaks_no_check() -> None:
    """Checks remember the newest incarnations, and one block of the log may have many more."""
    deaths = [KILL | {"at_step": 20 * number} for number in range(1, 40)]
    events = simulated(wanted(*deaths, budget={"syncer_steps": 800}))
    assert max(event.incarnation for event in events if event.writer == "learner-a-1") > INCARNATIONS_KEPT + 4
    assert sound(check(events))


def test_every_fault_of_a_recipe_has_its_effect() -> None:
    kinds = get_args(FaultKind)
    at = {kind: 20 * (number + 1) for number, kind in enumerate(kinds)}
    faults = [
        {"kind": kind, "learner": "learner-a-1", "at_step": at[kind], "duration_s": 8.0, "delay_s": 4.0}
        for kind in kinds
    ]
    sync = recipe().canonical()["sync"] | {"lease_s": 3.0}
    events = simulated(wanted(*faults, sync=sync, budget={"syncer_steps": 200}))
    assert [fact.fault_kind for fact in facts(events, FaultInjected)] == list(kinds)
    assert len(facts(events, FaultHealed)) == 5
    refused = {fact.reason for fact in facts(events, Refused)}
    assert {"bad_digest", "non_finite", "wrong_config"} <= refused
    causes = Counter(fact.cause for fact in facts(events, LearnerLost))
    assert causes["died"] == 2 and causes["failed"] == 2, "kill and wrong_config; the wrong recipe, and what was NaN"
    assert {fact.learner for fact in facts(events, LeaseExpired)} == {"learner-a-1"}
    late = [fact for fact in facts(events, StepFinished) if 4.5 < fact.seconds < 5.5]
    assert 1 <= len(late) <= 8, "slow: four seconds more for each step, for eight seconds"
    assert sound(check(events))


def test_pools_regions_and_a_budget_in_tokens_are_those_of_the_recipe() -> None:
    raw = wanted().canonical()
    pools = [raw["pools"][0] | {"region": "west"}, raw["pools"][1]]
    made = wanted(pools=pools, budget={"tokens": 3000})
    events = simulated(made, seed=1, profile="hosts")
    *before, last = [commit.tokens_committed for commit in facts(events, Committed)]
    assert max(before) < 3000 <= last == facts(events, Finished)[0].tokens_committed
    asked = {(fact.learner, fact.pool, fact.region) for fact in facts(events, LearnerRequested)}
    assert asked == {("learner-a-0", "a", "west"), ("learner-a-1", "a", "west"), ("learner-b-0", "b", None)}
    faults = options_of(made, seed=1, profile="hosts").faults
    assert {fault.target for fault in faults} <= {*made.learners, EVERYBODY} and len(faults) > 5


# ------------------------------------------------------------------ the folder


def test_what_is_written_is_sealed_says_that_it_is_synthetic_and_is_the_same_every_time(tmp_path: Path) -> None:
    made = wanted(KILL)
    for name in ("one", "other"):
        simulated = run(made, seed=3, profile="mixed")
        write(made, simulated.events, simulated.verdicts, RunStore(tmp_path / name))
    one = tmp_path / "one"
    contents = [[event.content for event in read_run(tmp_path / name)] for name in ("one", "other")]
    assert contents[0] == contents[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"], "no draft is left"
    assert recipe_of(RunStore(one)) == made
    events = read_run(one)
    [started] = facts(events, RunStarted)
    assert "seed 3, profile mixed" in started.versions["synthetic"]
    assert all(math.isnan(fact.loss) for fact in facts(events, StepFinished))
    assert not any(
        commit.digest or any(each.digest for each in commit.participants) for commit in facts(events, Committed)
    )
    verdicts = {verdict.name: verdict for verdict in check_run(one)}
    assert [name for name, verdict in verdicts.items() if verdict.status == "violated"] == []
    assert verdicts["log.seal"].status == "pass"
    assert verdicts["replayable.digests"].status == "idle" and "synthetic" in verdicts["replayable.digests"].reason


def test_what_is_there_by_then_stays_and_no_draft_does(tmp_path: Path) -> None:
    made = wanted()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kept").touch()
    simulated = run(made)
    with pytest.raises(OSError, match="not empty"):
        write(made, simulated.events, simulated.verdicts, RunStore(tmp_path / "run"))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["run", "run/kept"]


def invoke(*arguments: str | Path) -> Any:
    words = ["tape", "--profile", "calm", *map(str, arguments)]
    return CliRunner().invoke(build(hostile=HOSTILE), words, catch_exceptions=False)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(wanted(KILL).canonical()))
    return path


def test_the_command_says_what_it_made_and_never_writes_over_a_run(toml: Path, tmp_path: Path) -> None:
    done = invoke(toml, tmp_path / "run", "--seed", "2", "--set", "budget.syncer_steps=24", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["seed"], told["syncer_steps"], told["injected"]) == (2, 24, {"kill": 1})
    assert told["commits"] == len(facts(read_run(tmp_path / "run"), Committed)) == 20
    before = (tmp_path / "run" / "seal.json").read_bytes()
    again = invoke(toml, tmp_path / "run")
    assert again.exit_code == 2 and "is there already, and not empty" in again.stderr
    assert (tmp_path / "run" / "seal.json").read_bytes() == before


def test_a_machine_that_breaks_a_promise_makes_no_tape(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer.protocol.open_step, "weigh", lambda each, *_: tuple(1.0 / len(each) for _ in each))
    done = invoke(toml, tmp_path / "run", "--json")
    assert done.exit_code == 5 and "oracle.weights" in json.loads(done.stdout)["error"]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--profile", "cal"], 'did you mean "calm"?'),
        (["--step-seconds", "inf"], "must be at most 86,400"),
        (["--set", "sync.overlap=strict"], "lock-step is not simulated"),
        (["--set", "sync.quorum=9"], "more than the 3 learners"),
        (["--set", "chaos.mtbf_s=0.5", "--set", "sync.quorum=all", "--set", "run.idle_s=20"], "stands still"),
    ],
)
def test_wrong_input_is_refused_and_leaves_nothing(arguments: list[str], says: str, toml: Path, tmp_path: Path) -> None:
    done = invoke(toml, tmp_path / "run", *arguments)
    assert done.exit_code == 2 and says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
