"""The paper's section 2, algorithm 1: what a learner does, step by step, and what it never does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chaos.simulation.profile import Fault
from learners.config import InnerConfig
from learners.fragment_io import FragmentIO
from learners.protocol.events_effects import Apply, Hold, RunStep
from learners.protocol.facts import Adopted, StepFinished
from learners.training.trainer import Trainer
from learners.training.tree import deal, initial_parameters
from orchestrator.accounting.books import settle
from orchestrator.eventlog.facts import RunFinished
from outer.config import SyncConfig
from outer.protocol.facts import Committed
from outer.protocol.messages import FragmentCounters
from tests.golden.loop import TOKENS, joined, only
from tests.learners.training.test_trainer import Half
from tests.paper.simulated import history

SYNC = {"P": 4, "H": 8, "tau": 2, "lease_s": 100.0, "grace": "adaptive"}


def test_a_learner_starts_from_the_value_of_the_syncer_with_its_counters_at_zero() -> None:
    """Section 2, algorithm 1, start."""
    loop = joined()
    applied = [(apply.fragment, apply.version, apply.mode) for apply in only(Apply, loop.log)]
    assert applied == [(0, 0, "bootstrap"), (1, 0, "bootstrap")]
    assert loop.machine.step == 0
    assert [loop.counters(p) for p in range(2)] == [FragmentCounters(0, 0, 0, 0)] * 2


def test_every_step_counts_itself_and_its_tokens_on_every_fragment() -> None:
    """Section 2, algorithm 1, step 1."""
    loop = joined()
    for step in range(1, 6):
        loop.step()
        assert loop.machine.step == step
        assert [loop.counters(p) for p in range(2)] == [FragmentCounters(0, 0, step, step * TOKENS)] * 2


def test_each_step_is_reported_with_its_number_and_all_counters_and_the_next_begins_unanswered() -> None:
    """Section 2, algorithm 1, step 3: metadata goes out without blocking."""
    loop = joined()
    before = len(loop.reports)
    for step in range(1, 4):
        effects = loop.step()
        assert loop.reports[-1].step == step and len(loop.reports[-1].counters) == 2
        assert [run.step for run in only(RunStep, effects)] == [step + 1]
    assert len(loop.reports) == before + 3


def test_a_fragment_that_arrives_overwrites_its_own_alone_and_brings_the_global_clock() -> None:
    """Section 2, algorithm 1, step 4."""
    loop = joined()
    loop.steps(2)
    loop.deliver(2, 1)
    effects = loop.step()
    assert only(Apply, effects) == [Apply(1, 2, "v2", "overwrite")]
    loop.step()
    assert loop.reports[-1].syncer_step == 2
    assert loop.counters(1) == FragmentCounters(2, 3, 1, TOKENS)
    assert loop.counters(0) == FragmentCounters(0, 0, 4, 4 * TOKENS)


def test_a_learner_that_hears_nothing_any_more_steps_on_while_it_has_samples() -> None:
    """Section 2: it waits for no peer and not for the syncer. Here samples are lent, so a span is the limit."""
    loop = joined(span_steps=50)  # 100 batches were granted
    for _ in range(99):
        assert len(only(RunStep, loop.step())) == 1
    assert [hold.reason for hold in only(Hold, loop.step())] == ["span"]


def test_the_run_ends_by_the_global_clock_and_learners_end_with_different_step_counts() -> None:
    """Section 2, algorithm 1, while t <= T."""
    run = history({"a": 1.0, "b": 2.5}, SYNC, 60)
    assert [(fact.state, fact.reason) for fact in run.facts(RunFinished)] == [("finished", "syncer step 60 is reached")]
    assert run.facts(StepFinished, "a")[-1].step > 2 * run.facts(StepFinished, "b")[-1].step > 0


def test_what_was_done_between_the_read_and_the_arrival_is_lost_so_that_each_round_brings_what_is_left() -> None:
    """Section 2: with alpha = 0, c_steps settles at H - tau."""
    strict = {"overlap": "strict", "pacing": "quorum", "grace": "infinite"}
    run = history({"a": 1.0, "b": 1.0}, SYNC | strict, 60, quorum=2)
    later = [fact for fact in run.facts(Committed) if fact.base_version > 0]
    assert len(later) > 20
    assert {part.steps for fact in later for part in fact.participants} == {8 - 2}


def test_a_learner_that_stalled_takes_every_fragment_it_missed_when_it_resumes() -> None:
    """Section 2: in its newest version, at one boundary."""
    run = history({"a": 1.0, "b": 1.0}, SYNC, 100, Fault(30.5, "freeze", "b", 20.0, 0.0), hang_s=100.0)
    adopted = [said for said in run if said.writer == "b" and isinstance(said.fact, Adopted)]
    assert not [said for said in adopted if 31.0 < said.at < 50.0]
    back = {said.fact.fragment: said.fact for said in adopted if 50.0 <= said.at <= 53.0}  # the last of each
    assert sorted(back) == [0, 1, 2, 3]
    assert len({fact.after_step for fact in back.values()}) == 1, "at one boundary"
    newest = max(said.fact.syncer_step for said in run if isinstance(said.fact, Committed) and said.at < 50.0)
    assert min(fact.version for fact in back.values()) > newest - 8, "no older than a round"


class Line(Half):
    """The smallest model with two tensors."""

    def init(self, rng: jax.Array) -> dict[str, jax.Array]:
        return {"offset": jnp.ones(2), "slope": jnp.ones(3)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return jnp.mean(batch) + jnp.sum(params["slope"]) ** 2 + jnp.sum(params["offset"] ** 2), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.adamw(inner.lr)


@pytest.fixture
def trainer() -> tuple[Trainer, SyncConfig, list[np.ndarray]]:
    sync = SyncConfig.model_validate({"P": 2})
    fragments = deal(Line(), sync)
    return Trainer(Line(), fragments, InnerConfig(), 0), sync, initial_parameters(Line(), fragments, 0)


def test_adopting_changes_the_fragment_and_leaves_the_moments_of_the_inner_optimizer_alone(trainer: Any) -> None:
    """Section 2: only parameters are overwritten; AdamW's moments stay."""
    model, sync, initial = trainer
    fragment_io = FragmentIO(model, sync, 2)
    for fragment in range(2):
        fragment_io.apply(Apply(fragment, 0, initial[fragment], "bootstrap"))
    model.step(0, 2, 0.0)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    before = [np.asarray(leaf).copy() for leaf in model.state_leaves()]
    assert sum(leaf.size for leaf in before) >= 3 * parameters, "two moments beside the parameters"
    other = model.read(1).copy()
    fragment_io.apply(Apply(0, 4, initial[0] + 1.0, "overwrite"))
    after = [np.asarray(leaf) for leaf in model.state_leaves()]
    assert np.array_equal(model.read(0), initial[0] + 1.0) and np.array_equal(model.read(1), other)
    count = len(jax.tree.leaves(model.params))
    assert all(np.array_equal(one, two) for one, two in zip(before[count:], after[count:], strict=True))


def test_rebasing_keeps_what_was_done_since_the_read() -> None:
    """Section 2: what the paper throws away, adopt = "rebase" keeps; an addition of this project, off by default."""
    for adopt, lost in (("overwrite", True), ("rebase", False)):
        run = history({"a": 1.0, "b": 1.0}, {"P": 1, "H": 4, "tau": 1, "adopt": adopt}, 60, latency_s=0.7)
        assert ("overlap" in set(settle(run.events).fates.values())) is lost
