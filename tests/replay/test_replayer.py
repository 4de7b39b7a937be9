"""A run of the lock-step shell, with deaths, peers' states and a drain, is computed again to the bit from its log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.harness import lockstep
from learners.config import InnerConfig
from learners.protocol.facts import Adopted, Spoiled, StateReceived, StepFinished
from learners.training.step import make_step
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from orchestrator.recipe.config import Recipe
from orchestrator.replay import learners
from orchestrator.replay.incarnation import Adopt, TapeError
from orchestrator.replay.replayer import Replayer
from orchestrator.replay.tape import Tape, record
from outer.protocol.facts import Committed, DrainStarted
from tests.orchestrator.histories import altered, event_of, inserted, is_a
from tests.replay.shaken import OneProcess, Points, Shaken, recipe, shaken

Make = Callable[..., Shaken]
WAYS: Sequence[dict[str, Any]] = (
    {},
    {"adopt": "rebase"},
    {"codec": "bf16"},
    {"adopt": "rebase", "codec": "bf16", "downlink": "int8"},
    {"overlap": "strict"},
    {"codec": "fp4", "downlink": "bf16"},
    {"codec": "int8", "error_feedback": 0.9, "downlink": "fp4"},
    {"adopt": "rebase", "codec": "fp4", "error_feedback": 1.0},
    {"base_window": 2, "downlink": "int8"},
    {"adopt": "rebase", "base_window": 2},
    {"base_window": 2, "codec": "int8", "error_feedback": 0.9},
    {"adaptive": True},
    {"adaptive": True, "adopt": "rebase", "base_window": 2},
    {"P": 8, "H": 8, "split": True, "adopt": "rebase", "codec": "int8", "downlink": "bf16"},
    {"adaptive": True, "codec": "bf16", "error_feedback": 0.9, "downlink": "int8"},
)


def replayer_of(tape: Tape, recipe: Recipe, seed: int = 0) -> Replayer:
    points = Points(recipe.data, seed)
    return Replayer(tape, recipe, points, OneProcess(tape, recipe, points))


def played(run: Shaken, events: Sequence[Event], until: int | None = None) -> Replayer:
    replayer = replayer_of(record(events, until), run.recipe, run.recipe.seed)
    for _ in replayer.play():
        pass
    replayer.finish()
    return replayer


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_number_is_equal_to_the_bit(way: dict[str, Any], shaken_run: Make) -> None:
    run = shaken_run(**way)
    events = [event_of(event.to_json()) for event in run.events]  # as from a file
    replayer = played(run, events)
    assert replayer.difference is None and replayer.tally.bit_equal is True
    assert replayer.parameters.digest() == run.parameters.digest()
    assert replayer.parameters.versions == run.parameters.versions
    commits = [event.fact for event in events if isinstance(event.fact, Committed)]
    assert replayer.tally.equal == replayer.tally.compared
    assert replayer.tally.equal["commit"] == len(commits) >= 40 and replayer.tally.equal["final"] == 1
    assert replayer.tally.equal["contribution"] == sum(len(commit.participants) for commit in commits)
    assert replayer.tally.equal["loss"] == replayer.tally.steps > 100
    assert replayer.tally.equal["state"] == (0 if "overlap" in way else 2), "two came back from a peer's state"
    assert any(isinstance(event.fact, DrainStarted) for event in events)
    assert any(one.age for commit in commits for one in commit.participants) == ("base_window" in way)
    mixed = [commit for commit in commits if len({one.codec for one in commit.participants}) > 1]
    assert (len(mixed) > 10) == ("adaptive" in way)


@pytest.mark.parametrize("way", WAYS[1:4], ids=str)
@pytest.mark.parametrize("kinds", [{}, {"x": "local", "y": "mean", "z": "frozen"}], ids=["half", "kinds"])
def test_leaves_in_bfloat16_and_of_every_kind_are_computed_again_to_the_bit(
    way: dict[str, Any], kinds: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is adopted is rounded, what rebasing rounds is carried on, and a joiner has its donor's local leaves."""
    plain = Points.loss

    def loss(self: Points, params: Any, batch: Any, rng: Any) -> Any:
        state = {name: 0.5 * params[name] + batch.mean() for name in ("x", "y")}
        return plain(self, params, batch, rng)[0], {"state": state}

    half = InnerConfig(lr=0.05, parameters="bfloat16", compute="bfloat16", microbatches=2)
    wanted = recipe(P=3, **way) if kinds else recipe(**way).model_copy(update={"inner": half})
    if kinds:
        monkeypatch.setattr(Points, "kinds", kinds, raising=False)
        monkeypatch.setattr(Points, "loss", loss)
    step = make_step(Points(wanted.data, wanted.seed), wanted.inner)
    for room in (lockstep, learners):
        monkeypatch.setattr(room, "make_step", lambda task, inner: step)
    run = shaken(wanted)
    merged = sorted(tensor.name for fragment in run.fragments for tensor in fragment.tensors)
    assert merged == ["embed", "w", *([] if kinds else ["x"]), "y", *([] if kinds else ["z"])]
    replayer = played(run, run.events)
    assert replayer.difference is None and replayer.tally.bit_equal is True
    assert replayer.tally.equal["contribution"] > 40 and replayer.tally.equal["state"] > 0


def test_nothing_is_kept_that_the_rest_of_the_tape_does_not_need(shaken_run: Make) -> None:
    run = shaken_run(adopt="rebase")
    replayer = played(run, run.events)
    assert isinstance(replayer.workers, OneProcess)
    learners = replayer.workers.learners
    assert (learners._units, learners._values, learners._states) == ({}, {}, {})
    assert (replayer._sent, replayer._adoptions) == ({}, {})


def test_the_runs_have_what_is_hard_to_get_right(shaken_run: Make) -> None:
    """Anchors other than the base, a read after an adoption of the same step, more than one step between reads."""
    run = shaken_run(adopt="rebase")
    assert any(isinstance(event.fact, Adopted) and event.fact.read_at is not None for event in run.events)
    tape = record(run.events)
    assert any(one.steps > 6 for commit in tape.commits for one in commit.participants), "kept over a rebase"
    before = [
        incarnation.moments[place - 1]
        for incarnation in tape.incarnations.values()
        for place in incarnation.places.values()
    ]
    assert any(isinstance(moment, Adopt) for moment in before), "read, or given, after an adoption at the same step"


def test_a_replay_until_a_step_gives_the_parameters_of_that_step(shaken_run: Make) -> None:
    run = shaken_run()
    commits = [event.fact for event in run.events if isinstance(event.fact, Committed)]
    replayer = played(run, run.events, until=commits[20].syncer_step)
    newest = {commit.fragment: commit.syncer_step for commit in commits[:21]}
    assert dict(enumerate(replayer.parameters.versions)) == newest
    assert (replayer.tally.compared["commit"], replayer.tally.compared["final"]) == (21, 0)
    assert replayer.difference is None and replayer.tally.bit_equal is True, "the end is not reached, nor asked for"
    assert replayer.tally.steps < played(run, run.events).tally.steps


def bare(fact: Any) -> Any:
    """The same without digests."""
    if isinstance(fact, Committed):
        return replace(fact, digest="", participants=tuple(replace(one, digest="") for one in fact.participants))
    return replace(fact, digest="") if isinstance(fact, StateReceived | RunFinished) else fact


def first_without_digest(events: Sequence[Event]) -> list[Event]:
    first, *rest = next(event.fact for event in events if is_a(Committed)(event)).participants
    return altered([*events], is_a(Committed), participants=(replace(first, digest=""), *rest))


PEER = is_a(StateReceived, source="peer")


@pytest.mark.parametrize(
    "lacking",
    [
        lambda events: altered(events, is_a(Committed), digest=""),
        lambda events: altered(events, PEER, digest=""),
        lambda events: altered(events, is_a(RunFinished), digest=""),
        first_without_digest,
        lambda events: [replace(event, fact=bare(event.fact)) for event in events],  # only losses are equal
    ],
    ids=["commit", "state", "final", "contribution", "all"],
)
def test_a_tape_that_lacks_a_digest_is_not_called_equal(lacking: Callable[..., list[Event]], shaken_run: Make) -> None:
    run = shaken_run()
    replayer = played(run, lacking(run.events))
    assert replayer.tally.equal["loss"] == replayer.tally.compared["loss"] == replayer.tally.steps
    assert (replayer.difference, replayer.tally.bit_equal) == (None, None)


def test_a_run_that_failed_has_no_final_parameters_to_compare_with(shaken_run: Make) -> None:
    run = shaken_run()
    replayer = played(run, altered(run.events, is_a(RunFinished), state="failed", digest=""))
    assert replayer.tally.bit_equal is True and "final" not in replayer.tally.computed


# ------------------------------------------------------------------ what is not as it was, is found


@pytest.mark.parametrize(
    ("change", "found"),
    [
        # A loss that is no number is compared where numbers were recorded.
        (lambda e: altered(e, is_a(StepFinished, step=3), loss=math.nan), {"what": "loss", "recorded": "nan"}),
        # Another learning rate shows in the next loss.
        (lambda e: altered(e, is_a(StepFinished, step=9), progress=0.99), {"what": "loss", "step": 10}),
        # A spoiled fragment is spoiled again.
        (lambda e: inserted(e, is_a(StepFinished, step=5), Spoiled(6, 1)), {"what": "loss", "step": 6, "found": "nan"}),
        (lambda e: altered(e, PEER, digest="0" * 64), {"what": "state", "learner": "learner-a-1"}),
        (lambda e: altered(e, is_a(RunFinished), digest="0" * 64), {"what": "final"}),
    ],
    ids=["loss", "rate", "spoiled", "state", "final"],
)
def test_the_first_difference_is_named(
    change: Callable[..., list[Event]], found: dict[str, Any], shaken_run: Make
) -> None:
    run = shaken_run()
    replayer = played(run, change(run.events))
    assert replayer.difference is not None and replayer.tally.bit_equal is False
    assert {name: getattr(replayer.difference, name) for name in found} == found


def test_another_weight_shows_in_the_commit_though_every_contribution_is_equal(shaken_run: Make) -> None:
    run = shaken_run()
    commit = next(e.fact for e in run.events if isinstance(e.fact, Committed) and len(e.fact.participants) == 3)
    tape = record(run.events)
    shares = zip(commit.participants, (0.2, 0.2, 0.6), strict=True)
    shifted = replace(commit, participants=tuple(replace(one, weight=share) for one, share in shares))
    commits = tuple(shifted if each == commit else each for each in tape.commits)
    replayer = replayer_of(replace(tape, commits=commits), run.recipe)
    list(replayer.play())
    difference = replayer.difference
    assert difference is not None
    assert (difference.what, difference.syncer_step, difference.learner) == ("commit", commit.syncer_step, "")
    assert difference.recorded == commit.digest


def test_a_recipe_of_another_model_or_batch_is_told_apart_from_the_run(shaken_run: Make) -> None:
    run = shaken_run()
    tape = record(run.events)
    with pytest.raises(TapeError, match="other fragments than the run had"):
        replayer_of(tape, recipe(P=4))
    other = run.recipe.model_copy(update={"pools": run.recipe.pools[:1]})
    with pytest.raises(TapeError, match="learner-b-0 1 is of no pool of the recipe"):
        replayer_of(tape, other)
    incarnations = {
        key: replace(incarnation, device=replace(incarnation.device, devices=64))
        for key, incarnation in tape.incarnations.items()
    }
    with pytest.raises(TapeError, match=r"1 computed on 64 devices: .*64"):
        list(replayer_of(replace(tape, incarnations=incarnations), run.recipe).play())
    pools = [pool.model_copy(update={"batch_size": 3}) for pool in run.recipe.pools]
    other = run.recipe.model_copy(update={"pools": tuple(pools)})
    with pytest.raises(TapeError, match="had 8 tokens, and by the recipe it has 12"):
        list(replayer_of(tape, other).play())
