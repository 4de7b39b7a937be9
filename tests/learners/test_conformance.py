"""check-task: a sound task passes every check, and each planted fault fails the check of its name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learners.config import InnerConfig
from learners.conformance import checks, fingerprint
from learners.conformance.check import Finding, Subject
from outer.config import SyncConfig

SIZE = 4
TRUTH = np.arange(SIZE, dtype=np.float32)


class Sound:
    """Linear regression: as small as a task can be."""

    merge_rules: Mapping[str, str] = {"we*": "avg"}

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def init(self, rng: jax.Array) -> Any:
        return {"weight": jax.random.normal(rng, (SIZE,)), "bias": jnp.zeros(())}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        x, y = batch
        return jnp.mean((x @ params["weight"] + params["bias"] - y) ** 2), {"bias": params["bias"]}

    def optimizer(self, inner: InnerConfig) -> Any:
        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        drawn = [np.random.default_rng((self.seed, stream, i)).normal(size=SIZE) for i in range(start, start + count)]
        x = np.asarray(drawn, dtype=np.float32)
        return x, x @ TRUTH

    def tokens(self, count: int) -> Any:
        return count

    def held_out(self, start: int, count: int) -> Any:
        return self.batch(start, count, stream=1)


def examined(
    factory: type[Sound], *names: str, inner: Mapping[str, Any] | None = None, **changes: Any
) -> dict[str, Finding]:
    """Findings by their checks' names, of all of them or of those named; another process is another instance here."""
    subject = Subject(
        build=factory,
        inner=InnerConfig.model_validate({"lr": 1e-2, **(inner or {})}),
        sync=SyncConfig(**changes),
        batch_size=4,
        seed=0,
        elsewhere=lambda: fingerprint.fingerprint(factory(), 0, 4),
    )
    return {finding.name: finding for finding in checks.run_checks(subject, names)}


def test_a_sound_task_passes_every_check() -> None:
    findings = examined(Sound)
    assert {finding.status for finding in findings.values()} == {"pass"}, findings
    assert list(findings) == [check.name for check in checks.CHECKS]
    assert len(findings) == 16


# ------------------------------------------------------------------ planted faults


class WholeNumberInParameters(Sound):
    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"count": jnp.zeros((), jnp.int32)}


class InitWithInfinity(Sound):
    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"bias": 1.0 / jnp.zeros(())}


class InitOfNumPy(Sound):
    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"bias": jnp.float32(np.random.default_rng().normal())}


class SampleOnTheSecondAxis(Sound):
    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        x, y = super().batch(start, count, stream)
        return x.T, y


class OneEpoch(Sound):
    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        if start + count > 10_000:
            raise IndexError("out of samples")
        return super().batch(start, count, stream)


class OneGenerator(Sound):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.random = np.random.default_rng(seed)

    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        x = self.random.normal(size=(count, SIZE)).astype(np.float32)
        return x, x @ TRUTH


class SameBuffer(Sound):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._buffer = np.empty((10_000, SIZE), np.float32)

    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        x, y = super().batch(start, count, stream)
        self._buffer[:count] = x
        return self._buffer[:count], y


class NewSeedForEachInstance(Sound):
    seeds: Iterator[int] = itertools.count(1)

    def __init__(self, seed: int = 0) -> None:
        super().__init__(next(self.seeds))


class SeededByTheBatch(Sound):
    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        x = np.random.default_rng((self.seed, stream, start)).permutation(count * SIZE).reshape(count, SIZE)
        return x.astype(np.float32), (x @ TRUTH).astype(np.float32)


class NoTokens(Sound):
    def tokens(self, count: int) -> Any:
        return 0


class HalvesOfTokens(Sound):
    def tokens(self, count: int) -> Any:
        return count // 2 + 1


class HeldOutOfAnotherShape(Sound):
    def held_out(self, start: int, count: int) -> Any:
        x, y = super().held_out(start, count)
        return x, y[:, None]


class UnitOfNoWord(Sound):
    loss_unit = 3


def losing(name: str, change: Callable[..., Any]) -> type[Sound]:
    """A sound task but for what `change` makes of (parameters, batch, loss, auxiliary values)."""

    def loss(self: Sound, params: Any, batch: Any, rng: jax.Array) -> Any:
        return change(params, batch, *Sound.loss(self, params, batch, rng))

    return type(name, (Sound,), {"loss": loss})


LossOfEachSample = losing("LossOfEachSample", lambda params, batch, *_: ((batch[0] @ params["weight"]) ** 2, {}))
LossAlone = losing("LossAlone", lambda params, batch, loss, aux: loss)
AuxiliaryVector = losing("AuxiliaryVector", lambda params, batch, loss, aux: (loss, {"each": batch[1], "fine": loss}))
UnnamedAuxiliary = losing("UnnamedAuxiliary", lambda params, batch, loss, aux: (loss, {7: loss}))
ManyAuxiliaries = losing(
    "ManyAuxiliaries", lambda params, batch, loss, aux: (loss, {f"value{n:02}": loss * n for n in range(18)})
)
NumPysNoise = losing(
    "NumPysNoise", lambda params, batch, loss, aux: (loss * np.random.default_rng().uniform(1.0, 2.0), aux)
)
LossThatOverflows = losing(
    "LossThatOverflows", lambda params, batch, loss, aux: (loss + jnp.exp(jnp.float32(1e3)), aux)
)
LossThatBranches = losing("LossThatBranches", lambda params, batch, loss, aux: (loss if loss > 0 else -loss, aux))
RootOfZero = losing("RootOfZero", lambda params, batch, loss, aux: (loss + jnp.sqrt(params["bias"]), aux))
SumOfSamples = losing("SumOfSamples", lambda params, batch, loss, aux: (loss * len(batch[0]), aux))
CancelsInHalf = losing(  # it subtracts numbers that bfloat16 cannot tell apart
    "CancelsInHalf",
    lambda params, batch, loss, aux: ((loss.astype(params["weight"].dtype) + 4096.0) - 4096.0, aux),
)


class LossThatRemembers(Sound):
    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        self.last = loss
        return loss, aux


class NoGradient(Sound):
    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        return super().loss(jax.lax.stop_gradient(params), batch, rng)


class NoOptimizer(Sound):
    def optimizer(self, inner: InnerConfig) -> Any:
        return inner.lr


class FrozenOptimizer(Sound):
    def optimizer(self, inner: InnerConfig) -> Any:
        return optax.set_to_zero()


class DivergingOptimizer(Sound):
    def optimizer(self, inner: InnerConfig) -> Any:
        return optax.sgd(1e38)


class UnknownRule(Sound):
    merge_rules: Mapping[str, str] = {"weight": "mean"}


class RuleForNothing(Sound):
    merge_rules: Mapping[str, str] = {"weights": "avg"}


class Counting(Sound):
    """Counts its samples, and keeps the batch's mean."""

    kinds: Mapping[str, str] = {"seen": "local", "mean": "mean"}

    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"seen": jnp.int32(0), "mean": jnp.zeros(SIZE)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        return loss, aux | {"state": {"seen": params["seen"] + len(batch[0]), "mean": jnp.mean(batch[0], axis=0)}}


class KindForNothing(Counting):
    kinds: Mapping[str, str] = {"counter": "local"}


class NewValueOfAnotherType(Counting):
    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        return loss, aux | {"state": aux["state"] | {"seen": jnp.float32(1.0)}}


class NoNewValue(Counting):
    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        return Sound.loss(self, params, batch, rng)


class HeldOutLossOfEachSample(Counting):
    def held_out_loss(self, params: Any, batch: Any) -> Any:
        return batch[0] @ params["weight"]


class OnlyStatisticsMove(Counting):
    def optimizer(self, inner: InnerConfig) -> Any:
        return optax.set_to_zero()


def test_a_task_with_leaves_of_other_kinds_is_sound() -> None:
    assert {finding.status for finding in examined(Counting).values()} == {"pass"}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (KindForNothing, "init", "'counter' matches no parameter"),
        (NewValueOfAnotherType, "loss", r"\['seen'\] is float32"),
        (HeldOutLossOfEachSample, "held-out", r"held_out_loss returns .*\(4,\)"),
        (NoNewValue, "loss", "no value for mean, seen"),
        (OnlyStatisticsMove, "steps", "stay as they were"),
        (WholeNumberInParameters, "init", "count.*int32"),
        (InitWithInfinity, "init", "bias elements that are not finite"),
        (InitOfNumPy, "init-repeats", "differ in bias"),
        (SampleOnTheSecondAxis, "batch", r"\[4, 4\]|\[4, 1\]"),
        (OneEpoch, "batch", "raises IndexError: out of samples"),
        (OneGenerator, "batch-repeats", "asked for again"),
        (SameBuffer, "batch-repeats", "changes when the next is asked for"),
        (NewSeedForEachInstance, "batch-repeats", "second instance"),
        (SeededByTheBatch, "batch-splits", "batch"),
        (NoTokens, "tokens", "is 0"),
        (HalvesOfTokens, "tokens", "is not tokens"),
        (HeldOutOfAnotherShape, "held-out", "float32"),
        (LossOfEachSample, "loss", "float32"),
        (LossAlone, "loss", "loss returns"),
        (AuxiliaryVector, "loss", "no real scalars: each"),
        (UnnamedAuxiliary, "loss", "no strings: 7"),
        (UnitOfNoWord, "loss", "loss_unit is 3"),
        (LossThatRemembers, "loss", "changes the task itself: last"),
        (NumPysNoise, "loss", "compiled twice"),
        (LossThatOverflows, "loss", "is inf"),
        (LossThatBranches, "loss", "raises TracerBoolConversionError"),
        (RootOfZero, "gradients", "not finite for bias"),
        (NoGradient, "gradients", "all are zero"),
        (NoOptimizer, "optimizer", "returns float"),
        (FrozenOptimizer, "steps", "stay as they were"),
        (DivergingOptimizer, "steps", "not finite after 3 steps"),
        (UnknownRule, "merge-rules", "'mean'"),
        (RuleForNothing, "merge-rules", "'weights' matches no tensor"),
    ],
)
def test_a_planted_fault_is_found_by_the_check_of_its_name(factory: type[Sound], check: str, says: str) -> None:
    finding = examined(factory, check)[check]
    assert finding.status == "fail"
    assert re.search(says, finding.message), finding
    assert finding.fix


class ConstantStart(Sound):
    def init(self, rng: jax.Array) -> Any:
        return {"weight": jnp.zeros(SIZE), "bias": jnp.zeros(())}


class TrainedOnHeldOut(Sound):
    def held_out(self, start: int, count: int) -> Any:
        return self.batch(start + 100, count)


class UnusedParameter(Sound):
    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"unused": jnp.zeros(3)}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (ConstantStart, "init-repeats", "another key"),
        (TrainedOnHeldOut, "held-out-disjoint", "156 held-out samples"),
        (UnusedParameter, "gradients", "all zero for unused"),
        (ManyAuxiliaries, "loss", "18 auxiliary values"),
    ],
)
def test_what_may_be_meant_is_only_warned_of(factory: type[Sound], check: str, says: str) -> None:
    finding = examined(factory, check)[check]
    assert finding.status == "warn" and says in finding.message and finding.fix


class DividesByZeroInHalf(Sound):
    """In bfloat16, 0.999 is 1."""

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        almost = jnp.full((), 0.999, params["weight"].dtype)
        return loss + 1.0 / (1.0 - almost).astype(jnp.float32), aux


HALF = {"parameters": "float32", "compute": "bfloat16"}


@pytest.mark.parametrize(
    ("factory", "inner", "status", "says"),
    [
        (Sound, {}, "pass", "float32 throughout"),
        (Sound, HALF | {"microbatches": 2}, "pass", "loss in bfloat16"),
        (DividesByZeroInHalf, HALF, "fail", "the first loss is inf with parameters in float32, loss in bfloat16"),
        (CancelsInHalf, HALF, "warn", "in float32"),
        (SumOfSamples, {"microbatches": 2}, "warn", "as the mean over 2 parts"),
        (Sound, {"microbatches": 3}, "fail", "inner.microbatches = 3 does not divide the batch of 4 samples"),
    ],
)
def test_dtypes_and_microbatches_that_do_not_suit_the_task_are_found(
    factory: type[Sound], inner: Mapping[str, Any], status: str, says: str
) -> None:
    finding = examined(factory, "precision", inner=inner)["precision"]
    assert (finding.status, says in finding.message) == (status, True), finding
    assert bool(finding.fix) == (status != "pass")


def test_too_many_fragments_and_what_rests_on_a_failed_check() -> None:
    findings = examined(Sound, "fragments", P=3)
    assert findings["fragments"].status == "fail"
    assert findings["fragments"].fix == "the largest P is 2"
    skipped = {name for name, finding in examined(SampleOnTheSecondAxis).items() if finding.status == "skip"}
    assert {"batch-repeats", "batch-splits", "loss", "gradients", "steps", "fresh-process"} <= skipped


def test_another_process_that_disagrees_is_found() -> None:
    other = fingerprint.fingerprint(Sound(), 0, 4) | {"batch": "", "loss": 0.0}
    subject = Subject(Sound, InnerConfig(), SyncConfig(), 4, 0, lambda: other)
    findings = {finding.name: finding for finding in checks.run_checks(subject, ["fresh-process"])}
    assert findings["fresh-process"].status == "fail"
    assert "another batch, loss" in findings["fresh-process"].message
