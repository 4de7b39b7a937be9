"""Leaves narrower than float32: what a learner loses by rounding is no progress, and small progress arrives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from learners.config import InnerConfig
from learners.fragment_io import FragmentIO
from learners.protocol.events_effects import Apply
from learners.training.trainer import Trainer
from learners.training.tree import deal
from outer.config import OuterConfig, SyncConfig
from outer.numeric.codec import examine
from outer.numeric.formats import NAMES
from outer.numeric.parameters import GlobalParameters
from outer.protocol.messages import Contribution, FragmentCounters
from tests.learners.training.test_trainer import Half

SIZE = 10
ULP = 2.0**-7  # of a bfloat16 in [1, 2)
HALF = 6  # the first leaf by size, w, is bfloat16; the others are float32
ODD = [1.0, -1.003, 0.0, -0.0, 1e-3, 3e-39, 0.1, -7e-5, 2.0, -0.0]  # few of them are bfloat16 numbers


FED_BACK = {"codec": "fp4", "error_feedback": 0.9}


class Learners:
    """M learners with two leaves, bfloat16[6] and float32[4], and their syncer."""

    def __init__(self, initial: NDArray[np.float32], count: int = 4, **sync: Any) -> None:
        config = SyncConfig.model_validate({"P": 1, **sync})
        fragments = deal(Half(), config)
        outer = OuterConfig(lr=0.7, momentum=0.0, merge="avg")
        self.codec = config.codec
        self.outer = GlobalParameters(fragments, [initial], outer, config.codec, {"w": "avg", "b": "avg"})
        self.trainers = [Trainer(Half(), fragments, InnerConfig(), 0) for _ in range(count)]
        self.units = [FragmentIO(trainer, config, 1) for trainer in self.trainers]
        self.mode, self.needs_notice = config.adopt, config.needs_notice
        self._publish("bootstrap")

    def _publish(self, mode: str, read_at: int | None = None) -> None:
        for unit in self.units:
            unit.apply(Apply(0, self.outer.versions[0], self.outer.thetas[0], mode, read_at))

    def round(self, late: Any = lambda: None) -> None:
        """Read, merge and adopt; `late` happens between reading and adopting."""
        version, payloads = self.outer.versions[0] + 1, []
        for unit in self.units:
            counters = FragmentCounters(version - 1, 0, 1, 1)
            copy = unit.stage([0])[0]
            asked = Contribution("a", 1, 1, version, 0, 1, version, 1, counters, copy, "")
            sent = examine(unit.encode(asked), self.codec, SIZE)
            assert not sent.defect
            payloads.append(sent.payload)
        late()
        self.outer.install(self.outer.propose(0, payloads, [1 / len(self.units)] * len(self.units)), version)
        self._publish(self.mode, version if self.needs_notice else None)

    def move(self, learner: int, by: float) -> None:
        """A step of one learner."""
        trainer = self.trainers[learner]
        trainer.load(0, trainer.read(0) + np.float32(by))


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("adopt", [{}, {"adopt": "rebase"}])
def test_idle_learners_leave_the_master_as_it_is_to_the_bit(codec: str, adopt: dict[str, Any]) -> None:
    initial = np.array(ODD, np.float32)
    idle = Learners(initial, codec=codec, **adopt)
    for _ in range(5):
        idle.round()
    assert idle.outer.thetas[0].tobytes() == initial.tobytes()


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
def test_a_drift_of_a_quarter_of_a_unit_a_round_arrives(codec: str, adopt: str) -> None:
    """One learner of four moves by one bfloat16 unit a round; lr 0.7, 60 rounds: 60 * 0.25 * 0.7 = 10.5 units."""
    one = Learners(np.ones(SIZE, np.float32), codec=codec, adopt=adopt)
    for _ in range(60):
        one.move(0, ULP)
        one.round()
    arrived = (one.outer.thetas[0].astype(np.float64) - 1.0) / ULP
    np.testing.assert_allclose(arrived, 10.5, rtol=1e-4)


def test_what_a_rebasing_learner_keeps_is_counted_once_without_its_rounding() -> None:
    """Each learner moves by one unit between read and adoption: each round brings it, as with float32 leaves."""
    both = Learners(np.array([1.003] * SIZE, np.float32), adopt="rebase")
    for _ in range(20):
        both.round(late=lambda: [both.move(learner, ULP) for learner in range(4)])
    bf16, float32 = both.outer.thetas[0][:HALF], both.outer.thetas[0][HALF:]
    np.testing.assert_allclose(bf16, float32[0], rtol=1e-6)


@pytest.mark.parametrize("adopt", [{}, {"adopt": "rebase"}, FED_BACK])
def test_a_restored_learner_sends_what_the_saved_one_would_have_sent(adopt: dict[str, Any]) -> None:
    saved = Learners(np.array(ODD, np.float32), count=1, **adopt)
    for _ in range(3):
        saved.round(late=lambda: saved.move(0, 1e-3))
    saved.move(0, 1e-3)
    other = Learners(np.zeros(SIZE, np.float32), count=1, **adopt)
    header, arrays = saved.units[0].snapshot().pack()
    other.units[0].restore(header, arrays)
    copies = [each.units[0].stage([0])[0] for each in (saved, other)]
    counters = FragmentCounters(3, 0, 1, 1)
    sent = [
        each.units[0].encode(Contribution("a", 1, 1, 9, 0, 1, 9, 1, counters, copy, "")).digest
        for each, copy in zip((saved, other), copies, strict=True)
    ]
    assert sent[0] == sent[1]


def test_the_rounding_is_what_a_load_does_to_the_leaves_and_none_for_float32() -> None:
    """Subnormal and extreme numbers too."""
    trainer = Learners(np.zeros(SIZE, np.float32), count=1).trainers[0]
    for seed in range(50):
        drawn = np.random.default_rng(seed).integers(0, 2**32, SIZE, dtype=np.uint32).view(np.float32)
        flat = np.where(np.isfinite(drawn) & (np.abs(drawn) < 1e38), drawn, np.float32(0.0))
        trainer.load(0, flat)
        added = trainer.rounding(0, flat)
        assert added is not None and np.array_equal(flat + added, trainer.read(0))
        assert not added[trainer.read(0) == flat].any()

    class Whole(Half):
        def init(self, rng: jax.Array) -> Any:
            return {"w": jnp.ones((3, 2)), "b": jnp.zeros(4)}

    whole = Trainer(Whole(), deal(Whole(), SyncConfig(P=1)), InnerConfig(), 0)
    assert whole.rounding(0, np.ones(SIZE, np.float32)) is None
