"""What a lock-step run with real JAX says about itself passes every checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.harness import lockstep
from learners.config import InnerConfig
from learners.protocol.facts import Adopted
from learners.training.step import make_step
from learners.training.task import Batch
from orchestrator.accounting.books import settle
from orchestrator.checkers import suite
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from outer.config import OuterConfig, SyncConfig
from outer.protocol.facts import Committed
from outer.protocol.syncer import Budget
from tests.orchestrator.histories import event_of
from tests.orchestrator.order import canonical


class Points:
    """Three vectors of one shape pulled towards random points: next to nothing to compile. 4 tokens a sample."""

    def init(self, rng: jax.Array) -> dict[str, jax.Array]:
        return {name: jax.random.normal(rng, (2, 2)) for name in ("x", "y", "z")}

    def loss(
        self, params: dict[str, jax.Array], batch: Batch, rng: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return sum((((leaf - batch.mean()) ** 2).sum() for leaf in params.values()), jnp.float32(0)), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.sgd(0.1)

    def batch(self, start: int, count: int) -> Batch:
        return np.arange(start, start + count, dtype=np.float32) % 7

    held_out = batch

    def tokens(self, count: int) -> int:
        return 4 * count


@pytest.fixture(autouse=True, scope="module")
def one_compilation() -> Iterator[None]:
    """Every run of this module trains with the same compiled step."""
    with pytest.MonkeyPatch.context() as patch:
        step = make_step(TASK, INNER)
        patch.setattr(lockstep, "make_step", lambda task, inner: step)
        yield


TASK, INNER = Points(), InnerConfig(clip_norm=0.0)


def log(sync: SyncConfig) -> list[Event]:
    """The events of 18 syncer steps of two learners whose batches differ."""
    shell = lockstep.LockStep(
        task=TASK,
        sync=sync,
        outer_config=OuterConfig(),
        inner=INNER,
        learners={"a": 2, "b": 4},
        quorum=2,
        budget=Budget(tokens=None, syncer_steps=18),
        span_steps=4,
    )
    shell.run()
    numbers: Counter[tuple[str, int]] = Counter()
    events = []
    for said in shell.facts:
        key = (said.writer, said.incarnation)
        events.append(Event(*key, numbers[key], said.at, said.fact))
        numbers[key] += 1
    return [*events, Event("orchestrator", 1, 0, shell.facts[-1].at + 1.0, RunFinished("finished", "budget"))]


@pytest.mark.parametrize("overlap", ["free", "strict"])
@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
def test_a_lock_step_run_keeps_every_promise(adopt: str, overlap: str) -> None:
    sync = SyncConfig.model_validate({"P": 3, "H": 6, "tau": 2, "adopt": adopt, "overlap": overlap})
    events = log(sync)
    verdicts = suite.check(events)
    assert {verdict.name for verdict in verdicts if not verdict.stands} == {"accounted.time"}, verdicts
    assert {verdict.status for verdict in verdicts if verdict.name == "accounted.time"} == {"unknown"}, (
        "no orchestrator"
    )
    kinds = Counter(type(event.fact) for event in events)
    assert kinds[Committed] >= 8, "three fragments in three rounds; the first is due at the end of one"
    assert {event.fact.mode for event in events if isinstance(event.fact, Adopted)} == {"bootstrap", adopt}
    books = settle(canonical(events))
    assert books.balanced and books.in_flight == 0 and books.committed > 0


def test_a_log_survives_being_written_and_read() -> None:
    events = log(SyncConfig.model_validate({"P": 3, "H": 6, "tau": 2}))
    assert [event_of(event.to_json()) for event in events] == events
