"""`diloco check-task`: exit codes, what is printed, and the process of its own in which a task is built again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from learners.conformance import fingerprint
from tests.orchestrator import calling

# Where in a batch a word's samples stand is a matter of Python's hash of it, which each process seeds anew.
SOURCE = """
import jax.numpy as jnp
import numpy as np
import optax

print("on import")

class Words:
    def __init__(self, data, seed, order="position", size=3):
        self.order, self.size = order, size

    def init(self, rng):
        return {"w": jnp.ones(self.size)}

    def loss(self, params, batch, rng):
        return jnp.mean((batch @ params["w"]) ** 2), {}

    def optimizer(self, inner):
        return optax.sgd(inner.lr)

    def batch(self, start, count, sign=1):
        print("a batch")
        key = {"position": int, "hash": lambda i: hash(f"word {i}") % 1000}[self.order]
        rows = [[sign * (1.0 + key(i)) % 997] * self.size for i in range(start, start + count)]
        return np.asarray(rows, dtype=np.float32)

    def tokens(self, count):
        return count

    def held_out(self, start, count):
        return -self.batch(start, count)
"""
RECIPE = """
name = "words"
task = "words:Words"
[model]
size = 2
[[pools]]
name = "a"
[budget]
tokens = 1000
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with the task in it."""
    for name in ("words", "exits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "words.py").write_text(SOURCE)
    (tmp_path / "words.toml").write_text(RECIPE)
    (tmp_path / "exits.py").write_text(EXITS)


def invoke(*words: str) -> Any:
    return calling.invoke("check-task", *words)


def test_a_sound_task_passes_in_a_process_of_its_own_too_and_what_it_prints_is_not_in_the_json() -> None:
    result = invoke("words.toml", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"], told["task"]) == (0, True, "words:Words"), told
    assert {"on import", "a batch"} <= set(result.stderr.splitlines())
    statuses = {check["name"]: check["status"] for check in told["checks"]}
    assert statuses["fresh-process"] == "pass"
    assert next(check for check in told["checks"] if check["name"] == "init")["message"].startswith("1 tensors, 2 ")


@pytest.mark.full
def test_what_the_hash_seed_decides_is_found_and_explained() -> None:
    result = invoke("words:Words", "--set", "model.order=hash")
    assert result.exit_code == 5
    assert "fail  fresh-process: another process gives another batch, held_out, loss" in result.stdout
    assert "\n      fix: look for hash()" in result.stdout
    assert result.stdout.endswith("1 failed\n")


def test_what_cannot_be_built_is_wrong_input() -> None:
    for arguments, says in (
        (["no.such:Task"], "does not import"),
        (["words:Wrods"], "does not import"),
        (["words:SOURCE"], "does not import"),
        (["words:Words", "--set", "model.colour=blue"], "cannot be built: TypeError"),
        (["words:np.zeros"], "cannot be built"),
        (["none.toml"], "no such file"),
        (["words:Words", "--set", "inner.lr=-1"], "inner.lr"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2 and says in result.stderr and "fix: " in result.stderr


EXITS = """
import sys
from words import Words

class LossExits(Words):
    def loss(self, params, batch, rng):
        sys.exit(0)

class Exits(Words):
    def __init__(self, data, seed):
        sys.exit(0)

class InitExits(Words):
    def init(self, rng):
        sys.exit(0)
"""


def test_a_loss_that_exits_is_a_finding_and_a_factory_that_does_is_wrong_input() -> None:
    result = invoke("exits:LossExits", "--json")
    findings = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert (result.exit_code, findings["loss"]["status"]) == (5, "fail")
    assert "raises SystemExit" in findings["loss"]["message"]
    assert findings["fresh-process"]["status"] == "skip"
    assert invoke("exits:LossExits").stdout.endswith("0 to look at, 1 failed, 4 skipped\n")
    result = invoke("exits:Exits", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["kind"]) == (2, "input")
    assert "cannot be built: SystemExit" in result.stderr


@pytest.mark.parametrize("command", ["run", "plan"])
def test_no_command_takes_the_exit_of_a_task_for_its_own(command: str) -> None:
    Path("exits.toml").write_text(RECIPE.replace("words:Words", "exits:InitExits").replace("size = 2", ""))
    result = calling.invoke(command, "exits.toml", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (4, 4), result.output
    assert not Path("runs").exists()


def test_a_process_that_fails_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"new process fails.*no\.such"):
        fingerprint.elsewhere("no.such:Task", {}, {}, 0, 1)
    monkeypatch.setattr(fingerprint, "PROCESS_S", 0.01)
    with pytest.raises(RuntimeError, match="does not finish within"):
        fingerprint.elsewhere("words:Words", {}, {}, 0, 1)
