"""Several devices in one learner: the same numbers as on one, really cut up, and read and adopted whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from orchestrator.recipe.config import PoolConfig, Recipe
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.validation import validate
from tests.learners.training.children import program, python

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def found(foxes: str) -> Any:
    return json.loads(program("on_four_devices.py", foxes, devices=4))


@pytest.mark.parametrize("several", ["split", "sharded", "parts", "mixed"])
def test_losses_and_fragments_are_those_of_one_device(found: Any, several: str) -> None:
    one, many = found["one_mixed" if several == "mixed" else "one"], found[several]
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-5)
    for mine, theirs in zip(many["initial"], one["initial"], strict=True):
        assert mine == theirs, "they begin with the same bits"
    for mine, theirs in zip(many["fragments"], one["fragments"], strict=True):
        # Adam's first steps divide by moments near zero, which magnifies what another order of summing rounds.
        np.testing.assert_allclose(mine, theirs, atol=2e-4)
    assert len({round(loss, 4) for loss in one["losses"][:4]}) == 4, "it trains"


def test_an_evaluation_over_all_devices_is_that_of_one_and_shares_the_parameters_out(found: Any) -> None:
    (loss, metrics), (same, spread) = found["evaluated"]["measured"]
    assert same == pytest.approx(loss, rel=1e-5) and spread == pytest.approx(metrics, rel=1e-4)
    assert metrics["again/loss"] == loss
    alone, shared = found["evaluated"]["bytes_of_the_first_device"]
    assert shared < 0.4 * alone


@pytest.mark.parametrize("several", ["one", "split", "sharded", "parts", "mixed"])
def test_adopting_puts_back_every_bit_and_compiles_nothing_anew(found: Any, several: str) -> None:
    assert found[several]["adopted"]
    assert found[several]["programs"] == 1


def test_parameters_and_moments_are_cut_as_the_task_says(found: Any) -> None:
    shards = found["sharded"]["shards"]
    assert shards["blocks/0/mlp/up"] == [[16, 24]] * 4
    assert shards["blocks/0/mlp/down"] == [[24, 16]] * 4
    assert shards["embed"] == [[128, 16]] * 4
    assert shards["norm"] == [[16]] * 4, "what no pattern names is replicated"
    assert found["sharded"]["moment_shard"] == [16, 24]
    assert found["split"]["shards"]["embed"] == [[256, 4]] * 4
    assert found["one"]["shards"]["embed"] == [[256, 16]]
    mixed = found["mixed"]["shards"]
    assert mixed["blocks/0/attention/query"] == [[8, 8]] * 4, "over both axes"
    assert mixed["blocks/0/mlp/up"] == mixed["blocks/0/mlp/gate"] == [[8, 24]] * 4
    assert mixed["blocks/0/mlp/down"] == [[6, 32]] * 4, "two experts each"
    assert mixed["blocks/0/mlp/router"] == [[8, 2]] * 4
    assert mixed["embed"] == [[128, 8]] * 4


@pytest.mark.parametrize("leaves", ["moved", "moved_pieces"])
def test_copies_adoption_and_snapshots_work_shard_by_shard_beside_steps_that_donate(found: Any, leaves: str) -> None:
    moved = found[leaves]
    assert moved["started_in_place"], "initial parameters are made where they belong"
    assert moved["copied"] and moved["captured"], "as of the step they were taken after, though others ran since"
    assert moved["kept_in_place"] and moved["placed"], "each shard stays on its device"
    assert not moved["shared"], "no shard shares memory with NumPy"
    assert moved["adopted"], "rebasing without progress is overwriting, and progress is kept"
    assert moved["programs"] == 1, "the step is compiled once"


def test_threads_that_look_at_a_captured_state_at_once_see_all_of_its_shards(found: Any) -> None:
    alone, together = found["looked_at"]
    assert alone == together and 4 in alone


def test_what_the_devices_do_not_allow_is_refused_with_the_numbers(found: Any) -> None:
    many, parallel, batch, cut = found["refusals"]
    assert "devices = 8: this process has 4" in many
    assert "model_parallel = 3 does not divide the 4 devices" in parallel
    assert "6 samples cannot be split over 4 devices" in batch
    assert "norm of shape [16]" in cut


@pytest.mark.parametrize(
    ("pool", "field"),
    [
        ({"devices": 4, "batch_size": 6}, "pools.0.batch_size"),
        ({"devices": 4, "model_parallel": 3}, "pools.0.model_parallel"),
        ({"resources": {"GPU": 4.0}, "batch_size": 6}, "pools.0.batch_size"),
        ({"batch_size": 8, "microbatches": 3}, "pools.0.batch_size"),
        ({"devices": 4, "batch_size": 8, "microbatches": 4}, "pools.0.batch_size"),
    ],
)
def test_a_recipe_whose_numbers_do_not_divide_is_refused(pool: dict[str, Any], field: str) -> None:
    pool = dict(pool)
    inner = {"microbatches": pool.pop("microbatches", 1)}
    pools = [{"name": "a", "learners": 2} | pool]
    recipe = {"name": "m", "pools": pools, "budget": {"tokens": 10**6}, "inner": inner}
    with pytest.raises(InputError) as caught:
        validate(Recipe.model_validate(recipe))
    assert [problem.field for problem in caught.value.problems] == [field]


def test_a_pool_steps_on_all_its_accelerators_and_on_one_cpu() -> None:
    known = {"CPU": 1, "GPU": 4, "TPU": 8}
    for kind, count in known.items():
        assert PoolConfig(name="a", resources={kind: float(count)}).known_devices == count
    assert PoolConfig(name="a", resources={"CPU": 4.0}).known_devices == 1
    assert PoolConfig(name="a", resources={"CPU": 4.0}, devices=4).known_devices == 4


@pytest.mark.parametrize("devices", [1, 3])
def test_a_cpu_learner_has_as_many_devices_as_asked_for_and_only_one_is_pinned_to_a_core(devices: int) -> None:
    code = (
        "import os\nfrom learners.training.devices.device import fit\n"
        "before, core = os.sched_getaffinity(0), min(os.sched_getaffinity(0))\n"
        f"fit(core, 'cpu', {devices})\n"
        "import jax\n"
        "print(len(jax.local_devices()), os.sched_getaffinity(0) == ({core} if %d == 1 else before))" % devices
    )
    done = python("-c", code, without=("XLA_FLAGS", "JAX_PLATFORMS"))
    assert done.stdout.split() == [str(devices), "True"], done.stderr
