"""The chain of published versions: its error, catching up, what is published exactly, and where it is continued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from outer.config import OuterConfig
from outer.numeric.chain import Recent, VersionChain
from outer.numeric.parameters import GlobalParameters
from outer.protocol.fragments import Fragment, Tensor
from tests.outer.numeric.test_formats import bound

SIZE, SEED = 3001, 7
CODED = ("bf16", "int8", "fp4")
FRAGMENT = Fragment(0, (Tensor("w", (SIZE,), "float32"),))
WITH_MEAN = Fragment(
    0,
    (Tensor("w", (1000,), "float32"), Tensor("statistics", (501,), "float32", "mean"), Tensor("x", (1500,), "float32")),
)
RULES = {"w": "avg", "x": "avg", "statistics": "mean"}


def walk(steps: int, size: int = SIZE) -> Iterator[Any]:
    """Parameters that move by steps of changing length, some elements much more than others."""
    rng = np.random.default_rng(3)
    theta, lengths = rng.normal(size=size).astype(np.float32), np.exp(rng.normal(size=size) * 2).astype(np.float32)
    for number in range(steps):
        yield theta.copy()
        theta += np.float32(1e-3 * (1 + number % 5)) * lengths * rng.normal(size=size).astype(np.float32)


def parameters(downlink: str, fragment: Fragment = FRAGMENT) -> GlobalParameters:
    (initial,) = walk(1, fragment.size)
    chain = VersionChain.of(downlink, [fragment], SEED)
    return GlobalParameters([fragment], [initial], OuterConfig(), "fp32", RULES, chain=chain)


def step(held: GlobalParameters, version: int) -> None:
    """A commit with two learners that moved from what was published."""
    rng = np.random.default_rng(version)
    theta = held.thetas[0]
    payloads = [theta + np.float32(1e-2) * rng.normal(size=theta.size).astype(np.float32) for _ in range(2)]
    held.install(held.propose(0, payloads, [0.5, 0.5], version), version)


@pytest.mark.parametrize("codec", CODED)
def test_the_published_version_stays_within_one_rounding_of_the_exact_one(codec: str) -> None:
    chain, (published, *later) = VersionChain(codec, [FRAGMENT], SEED), list(walk(300))
    apart = []
    for version, theta in enumerate(later, 1):
        within = bound(codec, theta - published) + 2 * np.spacing(np.abs(theta) + 1)
        published = chain.extend(0, published, [chain.delta(0, version, theta, published)])
        assert (np.abs(published - theta) <= within).all()
        apart.append(float(np.linalg.norm(published - theta)))
    assert np.mean(apart[-50:]) < 2 * np.mean(apart[:50]), "the error does not grow with the chain"
    assert np.mean(apart) > 0.0


@pytest.mark.parametrize("codec", CODED)
@pytest.mark.parametrize("fragment", [FRAGMENT, WITH_MEAN], ids=["merged", "with mean"])
def test_deltas_since_any_version_lead_to_the_bits_of_the_newest_and_are_smaller_than_it(
    codec: str, fragment: Fragment
) -> None:
    held, chain = parameters(codec, fragment), VersionChain(codec, [fragment], 0)
    versions = {0: held.thetas[0]}
    for version in range(3, 40, 3):
        step(held, version)
        versions[version] = held.thetas[0]
    caught_up = 0
    for version, before in versions.items():
        given = held.since(0, version)
        if isinstance(given, list):
            assert sum(each.nbytes for each in given) < held.thetas[0].nbytes
            assert all(each.nbytes == chain.bytes(0) for each in given)
            assert chain.extend(0, before, given).tobytes() == held.thetas[0].tobytes()
            caught_up += 1
        else:
            assert given is held.thetas[0]
    assert caught_up == min(13, (held.thetas[0].nbytes - 1) // chain.bytes(0)) >= 1


def test_only_as_many_deltas_are_kept_as_are_smaller_than_a_version() -> None:
    recent = Recent(100)
    for version in range(1000):
        recent.add(version, np.full(30, version % 256, np.uint8))
        assert len(recent.since(max(0, version - 2)) or ()) == min(3, version + 1)
        assert recent.since(version - 3) is None and recent.since(version + 1) is None
    recent.add(1000, np.zeros(100, np.uint8))
    assert recent.since(1000) is None, "a delta as large as a version helps nobody"


@pytest.mark.parametrize("codec", CODED)
def test_tensors_of_the_kind_mean_are_published_exactly(codec: str) -> None:
    held, (_, place, _) = parameters(codec, WITH_MEAN), [place for _, place in WITH_MEAN.slices()]
    for version in (1, 2, 3):
        theta = held.thetas[0] + np.linspace(1, 2, WITH_MEAN.size, dtype=np.float32)
        theta[place], theta[place.start - 1] = np.linspace(1e-6, 1e-3, 501, dtype=np.float32), 1e4
        held.install(held.propose(0, [theta], [1.0], version), version)
        assert held.thetas[0][place].tobytes() == held.exact[0][place].tobytes() == theta[place].tobytes()
        assert held.thetas[0].tobytes() != held.exact[0].tobytes()


def test_learners_move_from_what_is_published_and_the_outer_step_from_what_is_exact() -> None:
    held = GlobalParameters(
        [FRAGMENT],
        [next(walk(1))],
        OuterConfig(lr=1.0, momentum=0.0),
        "fp32",
        RULES,
        chain=VersionChain.of("int8", [FRAGMENT], SEED),
    )
    step(held, 1)
    exact, published = held.exact[0], held.thetas[0]
    assert not np.array_equal(exact, published)
    idle = held.propose(0, [published], [1.0], 2)
    assert idle.exact is not None and idle.exact.tobytes() == exact.tobytes(), "an idle learner moves nothing"
    moved = published + np.float32(0.25)
    wanted = (exact.astype(np.float64) - (published.astype(np.float64) - moved)).astype(np.float32)
    found = held.propose(0, [moved], [1.0], 2)
    assert found.exact is not None and found.exact.tobytes() == wanted.tobytes()
    adam = OuterConfig.model_validate({"optimizer": "adam", "lr": 0.1})
    other = GlobalParameters([FRAGMENT], [exact], adam, "fp32", RULES, chain=VersionChain.of("int8", [FRAGMENT], SEED))
    other.thetas[0] = published
    still = other.propose(0, [published], [1.0], 2)
    assert still.exact is not None and still.exact.tobytes() == exact.tobytes()


@pytest.mark.parametrize("codec", CODED)
def test_a_restored_chain_goes_on_to_the_bit(codec: str) -> None:
    whole, first, second = (parameters(codec) for _ in range(3))
    for version in range(1, 9):
        step(whole, version)
        if version <= 4:
            step(first, version)
    second.restore(0, 4, first.arrays(0))
    assert second.since(0, 3) is second.thetas[0], "what led here is not saved"
    for version in range(5, 9):
        step(second, version)
    assert second.digest() == whole.digest() and second.exact[0].tobytes() == whole.exact[0].tobytes()
    assert isinstance(second.since(0, 7), list)


def test_where_a_saved_value_or_the_recipe_has_no_chain_the_exact_parameters_are_the_published_ones() -> None:
    coded, plain = parameters("int8"), parameters("fp32")
    for held in (coded, plain):
        step(held, 1)
    for held, arrays in ((parameters("int8"), plain.arrays(0)), (parameters("fp32"), coded.arrays(0))):
        held.restore(0, 1, arrays)
        assert held.thetas[0].tobytes() == arrays[0].tobytes() and held.exact[0] is held.thetas[0]
    coded.restore_theta(0, 2, coded.thetas[0])
    assert coded.exact[0] is coded.thetas[0]
    with pytest.raises(ValueError, match="was saved as"):
        coded.restore(0, 3, [*coded.arrays(0), coded.thetas[0]])


@pytest.mark.parametrize(
    "wrong", [None, np.zeros(5, np.uint8), np.zeros(SIZE, np.float32)], ids=["none", "few", "float"]
)
def test_what_is_no_delta_is_refused(wrong: Any) -> None:
    chain, held = VersionChain("bf16", [FRAGMENT], SEED), parameters("bf16")
    with pytest.raises(ValueError, match="no delta of fragment 0"):
        chain.extend(0, held.thetas[0], [wrong])
