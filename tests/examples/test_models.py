"""Two examples: the mixture of experts against plain formulas; the samples of the vision transformer, and its end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.digits.task import SIDE, Digits
from examples.experts.task import MixtureLM, mixture, mixture_init
from learners.config import DataConfig, InnerConfig
from learners.training import trainer, tree
from learners.training.models import layers
from outer.config import SyncConfig

SMALL: dict[str, Any] = {"layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 12}
TOKENS = np.random.default_rng(0).integers(0, 256, (4, 13)).astype(np.uint16)


def one_mixture() -> Any:
    """Parameters of a mixture: width 8, four experts of 6."""
    shapes = jax.eval_shape(lambda: mixture_init(layers.matrices(jax.random.key(0), 4), 8, 6, 4, 1.0))
    drawn = np.random.default_rng(0)
    return {name: jnp.asarray(drawn.normal(size=each.shape) * 8**-0.5, jnp.float32) for name, each in shapes.items()}


def one_by_one(params: Any, x: Any, chosen: int) -> Any:
    """The mixture of x [tokens, width], token by token, in float64."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    width, count = p["router"].shape
    cut = {name: p[name].reshape(len(p[name]), count, -1) for name in ("gate", "up", "down")}
    out = []
    for row in np.asarray(x, np.float64):
        row = row / np.sqrt(np.mean(row**2) + 1e-6) * p["norm"]
        scores = np.exp(row @ p["router"])
        scores /= scores.sum()
        best = np.argsort(-scores)[:chosen]
        shares = scores[best] / (scores[best].sum() if chosen > 1 else 1.0)
        total = np.zeros(width)
        for expert, share in zip(best, shares, strict=True):
            gate, up = row @ cut["gate"][:, expert], row @ cut["up"][:, expert]
            total += share * ((gate / (1 + np.exp(-gate)) * up) @ cut["down"][:, expert])
        out.append(total)
    return np.stack(out)


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_token_gets_its_best_experts_and_teaches_the_router(chosen: int) -> None:
    params = one_mixture()
    x = jax.random.normal(jax.random.key(1), (3, 5, 8))
    wanted = one_by_one(params, x.reshape(-1, 8), chosen).reshape(x.shape)

    def total(params: Any, x: Any) -> Any:
        y, routing = mixture(params, x, chosen, 1e-6)
        return jnp.sum(y**2) + routing.balance + routing.z, y

    (_, found), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(params, x)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert float(jnp.abs(slopes["router"]).max()) > 0.0


def test_the_balancing_loss_is_least_for_an_even_router_and_grows_where_one_expert_gets_all() -> None:
    params = one_mixture()
    x = jax.random.normal(jax.random.key(1), (8, 64, 8))
    routed = jax.jit(lambda params, x: mixture(params, x, 1, 1e-6)[1])
    even = routed(params | {"router": params["router"] * 1e-3, "norm": jnp.ones(8)}, x)
    # A constant feature for which expert 2 alone has a weight.
    router = jnp.zeros((8, 4)).at[0, 2].set(20.0)
    skewed = routed(params | {"router": router, "norm": jnp.ones(8)}, x.at[..., 0].set(9.0))
    assert float(even.balance) == pytest.approx(1.0, abs=0.02)
    assert float(skewed.balance) == pytest.approx(4.0, abs=0.02)
    assert (float(skewed.load_max), float(skewed.load_min)) == (4.0, 0.0)
    assert 0.0 < float(even.load_min) <= 1.0 <= float(even.load_max) < 2.0


def test_what_a_step_reports_of_its_experts_adds_up_to_its_loss() -> None:
    model = MixtureLM(DataConfig(path="/no/such/text", sequence_length=12), 0, **SMALL)
    params = jax.jit(model.init)(jax.random.key(0))
    both = jax.jit(lambda *given: (*model.loss(*given), model.held_out_loss(*given[:2])))
    loss, aux, held_out = both(params, TOKENS, jax.random.key(0))
    summed = aux["cross_entropy"] + 0.01 * aux["balance"] + 0.001 * aux["router_z"]
    assert float(loss) == pytest.approx(float(summed), rel=1e-6)
    assert float(held_out) == pytest.approx(float(aux["cross_entropy"]), rel=1e-6)
    assert 0.0 <= float(aux["expert_load_min"]) <= 1.0 <= float(aux["expert_load_max"]) <= 4.0
    with pytest.raises(ValueError, match="chosen = 3 of experts = 2"):
        MixtureLM(DataConfig(path="/no/such/text"), 0, experts=2, chosen=3)


# ------------------------------------------------------------------ digits


def digits(**model: int) -> Digits:
    return Digits(DataConfig(sequence_length=1), 0, **({"layers": 1, "width": 32, "hidden": 64} | model))


def rows(batch: dict[str, np.ndarray]) -> list[bytes]:
    return sorted(image.tobytes() for image in batch["image"])


def test_an_epoch_takes_every_image_once_in_its_own_order_and_no_held_out_one() -> None:
    still = digits(shift=0)
    training, held_out = still.images
    size = len(training["digit"])
    assert (size, len(held_out["digit"])) == (1438, 359)
    first, second = still.batch(0, size), still.batch(size, size)
    assert rows(first) == rows(second) == rows(training)
    assert first["digit"].tolist() != second["digit"].tolist()
    assert not set(rows(training)) & set(rows(held_out))
    assert np.array_equal(still.held_out(359, 7)["image"], held_out["image"][:7])


def test_a_training_image_is_moved_by_a_pixel_at_most_and_by_its_position_alone() -> None:
    moved, still = digits().batch(90, 40)["image"], digits(shift=0).batch(90, 40)["image"]
    edged = np.pad(still, ((0, 0), (1, 1), (1, 1)))
    moves = [(down, right) for down in range(3) for right in range(3)]
    used = set()
    for index, image in enumerate(moved):
        fitting = [
            (down, right)
            for down, right in moves
            if np.array_equal(image, edged[index, down : down + SIDE, right : right + SIDE])
        ]
        assert fitting
        used |= set(fitting[:1])
    assert len(used) == len(moves)
    assert np.array_equal(digits().batch(100, 1)["image"][0], moved[10])


@pytest.mark.full
def test_it_learns_digits_that_it_has_not_seen() -> None:
    task = digits()
    learner = trainer.Trainer(task, tree.deal(task, SyncConfig(P=1)), InnerConfig(lr=3e-3), 0)
    for step in range(200):
        learner.step(step * 32, 32, progress=0.1)
    loss, aux = jax.jit(task.loss)(learner.params, task.held_out(0, 359), jax.random.key(0))
    assert float(aux["accuracy"]) > 0.8 and float(loss) < 0.7, "guessing: 0.1 and 2.3"


def test_sizes_that_do_not_fit_are_refused() -> None:
    for name, value in (("width", 30), ("patch", 3)):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            digits(**{name: value})
