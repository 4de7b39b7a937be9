"""What is wrong with a recipe is said at once, naming the field, what is allowed, and the fix."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.recipe import validation
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem, explain
from orchestrator.recipe.toml_text import dump, load, stored_hash, template, validate

RECIPES = Path(__file__).parents[3] / "deploy" / "recipes"
LOCAL = RECIPES / "local.toml"


def problems(*overrides: str, path: Path = LOCAL) -> dict[str, Problem]:
    """Every problem by its field."""
    with pytest.raises(InputError) as caught:
        validate(load(path, overrides))
    fields = [problem.field for problem in caught.value.problems]
    assert len(fields) == len(set(fields)), f"a field is complained of twice: {fields}"
    return {problem.field: problem for problem in caught.value.problems}


# ------------------------------------------------------------------ the recipes we ship


def test_the_shipped_recipes_are_valid() -> None:
    for path in RECIPES.glob("*.toml"):
        validate(load(path))


def test_local_is_the_template_and_demo_is_local_with_faults() -> None:
    assert LOCAL.read_text() == template("local")
    demo, local = load(RECIPES / "demo.toml").canonical(), load(LOCAL).canonical()
    kinds = [fault["kind"] for fault in demo["chaos"].pop("faults")]
    assert sorted(kinds) == ["freeze", "kill", "kill"]
    assert local["chaos"].pop("faults") == []
    assert demo | {"name": "local"} == local


# ------------------------------------------------------------------ overrides


def test_overrides_are_toml_or_text_and_reach_into_lists() -> None:
    recipe = load(
        LOCAL,
        ["pools.0.learners=2", "sync.quorum=all", "outer.lr = 1", "name='other'", "model.heads=8", "sync.P=", "seed=3"],
    )
    assert recipe.pools[0].learners == 2
    assert (recipe.sync.quorum, recipe.outer.lr, recipe.name, recipe.seed) == ("all", 1.0, "other", 3)
    assert recipe.model["heads"] == 8
    assert recipe.sync.fragments is None
    assert load(LOCAL, ["budget.tokens=", "budget.syncer_steps=50"]).budget.syncer_steps == 50
    assert load(LOCAL, ["pools.local.learners=3"]).pools[0].learners == 3
    assert "budget" in problems("budget.syncer_steps=50")
    for override in ("quorum", "=3", "a..b=3", "pools.1.learners=2", "pools.x=2", "name.first=2"):
        assert problems(override)["--set"].value == override


# ------------------------------------------------------------------ files


def test_a_byte_order_mark_is_no_part_of_a_recipe_and_an_override_is_utf_8(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf" + LOCAL.read_bytes())
    assert load(tmp_path / "marked.toml") == load(LOCAL)
    assert "is not UTF-8" in problems("model.text=\udcff")["--set"].message


def test_a_missing_file_names_the_command_that_writes_one_and_broken_toml_its_line_and_column(tmp_path: Path) -> None:
    assert "diloco init" in problems(path=tmp_path / "my.toml")["recipe"].fix
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "a"\n[sync\n')
    assert "line 2, column 6" in problems(path=broken)["recipe"].message


# ------------------------------------------------------------------ one wrong field

FAULT = 'chaos.faults=[{kind="kill",%s}]'


@pytest.mark.parametrize(
    ("overrides", "field", "message", "fix"),
    [
        (["sync.quorm=3"], "sync.quorm", "not a known key", "did you mean sync.quorum?"),
        (["sync.fragments=3"], "sync.fragments", "not a known key", "did you mean sync.P?"),
        (["sync.K=1"], "sync.K", "not a known key", "did you mean sync.quorum?"),
        (["inner.learning_rate=1"], "inner.learning_rate", "not a known key", "did you mean inner.lr?"),
        (["pools.locl.learners=1"], "--set", "names no element", "its elements are 0 to 0, local"),
        (["quorum=1"], "quorum", "not a known key here", "did you mean sync.quorum?"),
        (["lr=1"], "lr", "not a known key here", "did you mean inner.lr or outer.lr?"),
        (["zzz=1"], "zzz", "not a known key", "known here: name, seed, task"),
        (["sync.H=-5"], "sync.H", "a whole number above 0", "default is sync.H = 24"),
        (["sync.gamma=nan"], "sync.gamma", "at least 0 and below 1", "default is sync.gamma = 0.5"),
        (["sync.quorum=0"], "sync.quorum", 'a whole number above 0 or "all"', "default is sync.quorum = 1"),
        (["sync.grace=soon"], "sync.grace", 'a number at least 0 or one of "adaptive"', "adaptive"),
        (["sync.codec=fp64"], "sync.codec", 'one of "fp32", "fp32_delta", "bf16"', "fp32"),
        (["run.metrics=perhaps"], "run.metrics", "true or false", "true"),
        (["sync=3"], "sync", "a table", "leave it out"),
        (["name=Big Run"], "name", "lower-case letters, digits and hyphens", "name ="),
        (["task=module"], "task", "package.module:factory", "CausalLM"),
        (["pools=[]"], "pools", "a list of at least 1", "at least one [[pools]] table"),
        (["pools="], "pools", "is required", "at least one [[pools]] table"),
        (["name="], "name", "is required", "name = 1 to 40"),
        (["pools.0.resources.CPU=-1"], "pools.0.resources.CPU", "a number above 0", "= a number above 0"),
        (["sync.quorum=5"], "sync.quorum", "4 learners", 'give 1 to 4, or "all"'),
        (["sync.P=13"], "sync.P", "H = 12", "change sync.P or sync.H"),
        (["sync.P=500", "sync.H=500"], "sync.P", "the model has 29 tensors", "29"),
        (["sync.tau=12"], "sync.tau", "below H = 12", "change sync.tau or sync.H"),
        (["outer.optimizer=no.such:rule"], "outer.optimizer", "does not import", "package.module:function"),
        (["inner.optimizer=adamv"], "inner.optimizer", "optax", "adam"),
        (["outer.optimizer=sdg"], "outer.optimizer", "optax", "sgd"),
        (["inner.options.bta1=0.9"], "inner.options.bta1", "no such option", "beta"),
        (["data.path=/no/such/folder"], "data.path", "no such", "give"),
        (["task=no.such:Model"], "task", "does not import", "not beside the recipe"),
        (["model.layerz=2"], "model.layerz", "not a known key", "did you mean model.layers?"),
        (["model.layers=0"], "model.layers", "a whole number above 0", "default is model.layers = 3"),
        (["model.width=97"], "model.width", "pairs of a head", "change model.width or model.heads"),
        ([FAULT % 'learner="learner-locl-1",at_step=1'], "chaos.faults.0.learner", "known: any", '"learner-local-1"'),
        (
            ['chaos.faults=[{kind="link",learner="learner-local-1/1",at_step=1}]', "pools.0.processes=2"],
            "chaos.faults.0.kind",
            "not one of its ranks",
            "name learner-local-1, or use one of kill",
        ),
        ([FAULT % 'learner="any",at_step=1,at_s=1.0'], "chaos.faults.0", "exactly one", "chaos.faults.0.at_step"),
        (["model.scale=inf"], "model", "scale = inf is not finite", "change model"),
        (["model.deep={list=[1, nan]}"], "model", "deep.list.1 = nan is not finite", "change model"),
        (["model.since=2020-01-01"], "model", "since is a date, which no recipe keeps", "change model"),
        (["outer.options={b=1e999}"], "outer.options", "b = inf is not finite", "change outer.options"),
        ([f"model.many={2**64}"], "model", "more than 64 bits", "change model"),
        ([f"seed={2**32}"], "seed", "at most 4.29", "default is seed = 0"),
        ([f"data.sequence_length={2**63}"], "data.sequence_length", "more than 64 bits", "data.sequence_length"),
        (["run.start_s=1e30"], "run.start_s", "no clock waits", "run.start_s"),
        (['pools=[{name="a",learners=2},{name="a"}]'], "pools.1.name", "another pool's name", "of its own"),
    ],
)  # fmt: skip
def test_one_message_names_the_field_and_the_fix(overrides: list[str], field: str, message: str, fix: str) -> None:
    found = problems(*overrides)
    assert list(found) == [field]
    assert message in found[field].message
    assert fix in found[field].fix
    assert field in str(found[field])


def test_what_a_users_task_raises_and_kinds_that_do_not_fit_it_are_a_problem_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from learners.training.models.causal_lm import CausalLM\n\n"
    source += "def build(data, seed):\n    raise KeyError('weights')\n\nimport numpy, psutil\n"
    source += "def large(data, seed):\n    numpy.empty(psutil.virtual_memory().available + 2**32, numpy.uint8)\n"
    wrong: list[tuple[dict[str, str], str]] = [
        ({"blok*": "frozen"}, "'blok*' matches no parameter"),
        ({"norm": "still"}, "'norm' is 'still'"),
        ({"*": "frozen"}, "leave no parameter to train"),
    ]
    for number, (kinds, _) in enumerate(wrong):
        source += f"\nclass Wrong{number}(CausalLM):\n    kinds = {kinds!r}\n"
    (tmp_path / "broken_task.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert "KeyError: 'weights'" in problems("task=broken_task:build", "model={}")["task"].message
    large = problems("task=broken_task:large", "model={}")["task"]
    assert "MemoryError: Unable to allocate" in large.message and "in init()" in large.fix
    for number, (_, message) in enumerate(wrong):
        found = problems(f"task=broken_task:Wrong{number}")
        assert list(found) == ["task"] and message in found["task"].message and found["task"].fix


# ------------------------------------------------------------------ all of them at once


@pytest.mark.parametrize(
    "together",
    [
        ["sync.quorm=3", "sync.H=-5", "task=two words", "eval.every=-1"],  # of the schema
        ["sync.P=13", "inner.lr=0"],
        ["inner.optimizer=adamv", "outer.optimizer=sdg", "outer.merge=no.such:rule", "data.path=/no/such/folder"],
        ["sync.quorum=5", "task=no.such:Model"],
    ],
    ids=str,
)
def test_the_schemas_problems_are_told_together_and_then_all_others(together: list[str]) -> None:
    assert set(problems(*together)) == {override.partition("=")[0] for override in together}


def test_shards_need_a_fragment_each() -> None:
    assert list(problems("run.shards=13")) == list(problems("run.shards=13", "sync.P=")) == ["run.shards"]
    assert load(LOCAL, ["run.shards=12"]).run.shards == 12, "of 12 fragments"


def test_nothing_is_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a local cluster inherit it: JAX_PLATFORMS=cpu would take their accelerators away."""
    for before in (None, "tpu"):
        if before is None:
            monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        else:
            monkeypatch.setenv("JAX_PLATFORMS", before)
        validate(load(LOCAL))
        assert os.environ.get("JAX_PLATFORMS") == before


# ------------------------------------------------------------------ writing


@pytest.mark.parametrize(
    "overrides",
    [[], ["sync.grace=1.5", "pools.0.region=eu-1", "model.note='a \"quoted\" text\\n'", "inner.options={b1=0.95}"]],
)
def test_a_dumped_recipe_loads_to_the_same_hash(tmp_path: Path, overrides: list[str]) -> None:
    recipe = load(RECIPES / "demo.toml", overrides)
    (tmp_path / "resolved.toml").write_text(dump(recipe))
    again = load(tmp_path / "resolved.toml")
    assert again.config_hash == recipe.config_hash == stored_hash(dump(recipe))
    assert stored_hash(LOCAL.read_text()) is None


def test_every_field_of_the_schema_can_be_put_in_words() -> None:
    """A wrong type anywhere in the recipe yields words, never pydantic's own message."""
    odd = object()
    raw: dict[str, Any] = {
        name: dict.fromkeys(section, odd)
        for name, section in load(LOCAL).canonical().items()
        if isinstance(section, dict)
    }
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(raw | {"name": odd, "pools": [odd]})
    found = list(explain(caught.value, Recipe))
    assert len(found) > 30
    assert all("Input should" not in problem.message for problem in found)


def test_every_check_of_a_recipe_is_asked() -> None:
    written = {
        name
        for name, value in vars(validation).items()
        if inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["recipe"] and name[0] == "_"
    }
    assert written == {check.__name__ for check in validation.CHECKS}
