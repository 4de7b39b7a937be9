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
from learners.conformance.checks import Finding, Subject

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


def examined(factory: type[Sound], *names: str, inner: Mapping[str, Any] | None = None) -> dict[str, Finding]:
    """Findings by their checks' names, of all of them or of those named; another process is another instance here."""
    subject = Subject(
        build=factory,
        inner=InnerConfig.model_validate({"lr": 1e-2, **(inner or {})}),
        batch_size=4,
        seed=0,
        elsewhere=lambda: fingerprint.fingerprint(factory(), 0, 4),
    )
    return {finding.name: finding for finding in checks.run_checks(subject, names)}


def test_a_sound_task_passes_every_check() -> None:
    findings = examined(Sound)
    assert {finding.status for finding in findings.values()} == {"pass"}, findings
    assert list(findings) == [check.name for check in checks.CHECKS]
    assert len(findings) == 13


# ------------------------------------------------------------------ planted faults


def faulty(base: type[Sound] = Sound, **members: Any) -> type[Sound]:
    """A sound task but for these members."""
    return type("Faulty", (base,), members)


def starting(leaves: Callable[[], Mapping[str, Any]]) -> type[Sound]:
    """A task whose parameters have these leaves, in place of the sound ones or beside them."""
    return faulty(init=lambda self, rng: Sound.init(self, rng) | leaves())


def losing(change: Callable[..., Any], base: type[Sound] = Sound) -> type[Sound]:
    """A task whose loss returns what `change` makes of (loss, aux, params, batch)."""

    def loss(self: Sound, params: Any, batch: Any, rng: jax.Array) -> Any:
        return change(*base.loss(self, params, batch, rng), params, batch)

    return faulty(base, loss=loss)


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


class SampleOnTheSecondAxis(Sound):
    def batch(self, start: int, count: int, stream: int = 0) -> Any:
        x, y = super().batch(start, count, stream)
        return x.T, y


class HeldOutOfAnotherShape(Sound):
    def held_out(self, start: int, count: int) -> Any:
        x, y = super().held_out(start, count)
        return x, y[:, None]


class NoGradient(Sound):
    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        return super().loss(jax.lax.stop_gradient(params), batch, rng)


class Counting(Sound):
    """Counts its samples, and keeps the batch's mean."""

    kinds: Mapping[str, str] = {"seen": "local", "mean": "mean"}

    def init(self, rng: jax.Array) -> Any:
        return super().init(rng) | {"seen": jnp.int32(0), "mean": jnp.zeros(SIZE)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        return loss, aux | {"state": {"seen": params["seen"] + len(batch[0]), "mean": jnp.mean(batch[0], axis=0)}}


def test_a_task_with_leaves_of_other_kinds_is_sound() -> None:
    assert {finding.status for finding in examined(Counting).values()} == {"pass"}


def still(self: Sound, inner: InnerConfig) -> Any:
    return optax.set_to_zero()


def noise() -> float:
    return float(np.random.default_rng().uniform(1.0, 2.0))


FAILS: dict[str, tuple[type[Sound], str, str]] = {
    "kind-for-nothing": (faulty(Counting, kinds={"counter": "local"}), "init", "'counter' matches no parameter"),
    "new-value-of-another-type": (
        losing(lambda loss, aux, *_: (loss, aux | {"state": aux["state"] | {"seen": jnp.float32(1.0)}}), Counting),
        "loss",
        r"\['seen'\] is float32",
    ),
    "held-out-loss-of-each-sample": (
        faulty(Counting, held_out_loss=lambda self, params, batch: batch[0] @ params["weight"]),
        "held-out",
        r"held_out_loss returns .*\(4,\)",
    ),
    "no-new-value": (faulty(Counting, loss=Sound.loss), "loss", "no value for mean, seen"),
    "only-statistics-move": (faulty(Counting, optimizer=still), "steps", "stay as they were"),
    "whole-number": (starting(lambda: {"count": jnp.zeros((), jnp.int32)}), "init", "count.*int32"),
    "infinity": (starting(lambda: {"bias": 1.0 / jnp.zeros(())}), "init", "bias elements that are not finite"),
    "init-of-numpy": (starting(lambda: {"bias": jnp.float32(noise())}), "fresh-process", "another init"),
    "second-axis": (SampleOnTheSecondAxis, "batch", r"\[4, 4\]|\[4, 1\]"),
    "one-epoch": (OneEpoch, "batch", "raises IndexError: out of samples"),
    "one-generator": (OneGenerator, "batch-repeats", "asked for again"),
    "same-buffer": (SameBuffer, "batch-repeats", "changes when the next is asked for"),
    "new-seed": (NewSeedForEachInstance, "batch-repeats", "second instance"),
    "seeded-by-the-batch": (SeededByTheBatch, "batch-splits", "batch"),
    "no-tokens": (faulty(tokens=lambda self, count: 0), "tokens", "is 0"),
    "halves-of-tokens": (faulty(tokens=lambda self, count: count // 2 + 1), "tokens", "is not tokens"),
    "held-out-shape": (HeldOutOfAnotherShape, "held-out", "float32"),
    "loss-of-each-sample": (losing(lambda loss, aux, params, batch: (loss * batch[1], {})), "loss", "float32"),
    "loss-alone": (losing(lambda loss, *_: loss), "loss", "loss returns"),
    "auxiliary-vector": (
        losing(lambda loss, aux, params, batch: (loss, {"each": batch[1], "fine": jnp.float32(1.0)})),
        "loss",
        "no real scalars: each",
    ),
    "unnamed-auxiliary": (losing(lambda loss, *_: (loss, {7: jnp.float32(1.0)})), "loss", "no strings: 7"),
    "unit-of-no-word": (faulty(loss_unit=3), "loss", "loss_unit is 3"),
    "noise-of-numpy": (losing(lambda loss, aux, *_: (loss * noise(), aux)), "loss", "compiled twice"),
    "overflow": (losing(lambda loss, aux, *_: (loss + jnp.exp(jnp.float32(1e3)), aux)), "loss", "is inf"),
    "branch": (
        losing(lambda loss, aux, *_: (loss if loss > 0 else -loss, aux)),
        "loss",
        "raises TracerBoolConversionError",
    ),
    "root-of-zero": (
        losing(lambda loss, aux, params, _: (loss + jnp.sqrt(params["bias"]), aux)),
        "gradients",
        "not finite for bias",
    ),
    "no-gradient": (NoGradient, "gradients", "all are zero"),
    "no-optimizer": (faulty(optimizer=lambda self, inner: inner.lr), "steps", "raises AttributeError: 'float'"),
    "frozen-optimizer": (faulty(optimizer=still), "steps", "stay as they were"),
    "diverging": (faulty(optimizer=lambda self, inner: optax.sgd(1e38)), "steps", "not finite after 3 steps"),
    "unknown-rule": (faulty(merge_rules={"weight": "mean"}), "merge-rules", "'mean'"),
    "rule-for-nothing": (faulty(merge_rules={"weights": "avg"}), "merge-rules", "'weights' matches no tensor"),
}


WARNS: dict[str, tuple[type[Sound], str, str]] = {
    "trained-on-held-out": (
        faulty(held_out=lambda self, start, count: self.batch(start + 100, count)),
        "held-out-disjoint",
        "156 held-out samples",
    ),
    "unused-parameter": (starting(lambda: {"unused": jnp.zeros(3)}), "gradients", "all zero for unused"),
    "many-auxiliaries": (
        losing(lambda loss, *_: (loss, {f"value{index:02}": loss * index for index in range(18)})),
        "loss",
        "18 auxiliary values",
    ),
}


@pytest.mark.parametrize(("status", "name"), [*(("fail", name) for name in FAILS), *(("warn", name) for name in WARNS)])
def test_a_planted_fault_is_found_by_the_check_of_its_name_and_what_may_be_meant_is_warned_of(
    status: str, name: str
) -> None:
    factory, check, says = (FAILS | WARNS)[name]
    finding = examined(factory, check)[check]
    assert finding.status == status and finding.fix
    assert re.search(says, finding.message), finding


class DividesByZeroInHalf(Sound):
    """In bfloat16, 0.999 is 1."""

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> Any:
        loss, aux = super().loss(params, batch, rng)
        almost = jnp.full((), 0.999, params["weight"].dtype)
        return loss + 1.0 / (1.0 - almost).astype(jnp.float32), aux


def cancelled(loss: Any, aux: Any, params: Any, batch: Any) -> Any:
    """Subtract numbers that bfloat16 cannot tell apart."""
    return (loss.astype(params["weight"].dtype) + 4096.0) - 4096.0, aux


HALF = {"parameters": "float32", "compute": "bfloat16"}


@pytest.mark.parametrize(
    ("factory", "inner", "status", "says"),
    [
        (Sound, {}, "pass", "float32 throughout"),
        (Sound, HALF | {"microbatches": 2}, "pass", "loss in bfloat16"),
        (DividesByZeroInHalf, HALF, "fail", "the first loss is inf with parameters in float32, loss in bfloat16"),
        (losing(cancelled), HALF, "warn", "in float32"),
        (
            losing(lambda loss, aux, params, batch: (loss * len(batch[0]), aux)),
            {"microbatches": 2},
            "warn",
            "as the mean over 2 parts",
        ),
        (Sound, {"microbatches": 3}, "fail", "inner.microbatches = 3 does not divide the batch of 4 samples"),
    ],
    ids=["float32", "bfloat16", "division", "cancelling", "sum", "indivisible"],
)
def test_dtypes_and_microbatches_that_do_not_suit_the_task_are_found(
    factory: type[Sound], inner: Mapping[str, Any], status: str, says: str
) -> None:
    finding = examined(factory, "precision", inner=inner)["precision"]
    assert (finding.status, says in finding.message) == (status, True), finding
    assert bool(finding.fix) == (status != "pass")


def test_what_rests_on_a_failed_check_is_skipped() -> None:
    skipped = {name for name, finding in examined(SampleOnTheSecondAxis).items() if finding.status == "skip"}
    assert {"batch-repeats", "batch-splits", "loss", "gradients", "steps", "fresh-process"} <= skipped


def test_another_process_that_disagrees_is_found() -> None:
    other = fingerprint.fingerprint(Sound(), 0, 4) | {"batch": "", "loss": 0.0}
    subject = Subject(Sound, InnerConfig(), 4, 0, lambda: other)
    findings = {finding.name: finding for finding in checks.run_checks(subject, ["fresh-process"])}
    assert findings["fresh-process"].status == "fail"
    assert "another batch, loss" in findings["fresh-process"].message
