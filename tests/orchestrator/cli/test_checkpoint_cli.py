"""`diloco checkpoint` and `diloco export --checkpoint`: what is asked for, what is told, with which code."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from orchestrator.cli import checkpoint
from orchestrator.cli.app import build
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import CheckpointFailed
from orchestrator.eventlog.log_writer import LogWriter
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store import checkpoints, watch
from orchestrator.store.checkpoints import REQUEST_FILE, CheckpointManifest, CheckpointPart
from orchestrator.store.run_store import RunStore
from outer.journal import checkpoint_parts
from outer.journal.groups import Logged
from outer.journal.journal import StoredJournal
from outer.journal.object_store import Folder
from outer.numeric import codec
from outer.protocol.facts import Committed, Participant
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.recovery import Entry
from tests.waiting import DEADLINE_S, until

FRAGMENTS = (
    Fragment(0, (Tensor("blocks/0/up", (2, 3), "float32"), Tensor("scale", (), "float32"))),
    Fragment(1, (Tensor("embed", (4,), "bfloat16"),)),
)
INITIAL = {0: np.zeros(7, np.float32), 1: np.full(4, 0.1, np.float32)}
THETA = np.arange(7, dtype=np.float32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "POLL_S", 0.01)
    recipe = {"name": "demo", "pools": [{"name": "a"}], "budget": {"tokens": 10}}
    made = RunStore.named("demo")
    made.write_text("config.toml", dump(Recipe.model_validate(recipe)))
    status(made, "running")
    return made


def status(store: RunStore, state: str, age_s: float = 0.0) -> None:
    store.write_json("status.json", {"run": {"name": "demo", "state": state}, "written_at": time.time() - age_s})


def journal(store: RunStore) -> StoredJournal:
    """One epoch's, in which fragment 0 has committed."""
    made = StoredJournal(Folder(store.root), "journal", 1, len(FRAGMENTS))
    made.open()
    one = Participant("learner-a-0", 1, 1, 0, 1, 8, 1.0, "d", 8)
    record = Committed(5, 0, 1, 0, (one,), 1, codec.digest(THETA), 1.0, 8, 0.1, 0.2, 0.3, "why")
    made.write([Logged(Entry(1, 0, record), 0, 1.0, [THETA, np.arange(3)])])
    return made


def take(store: RunStore, snapshot: int, journaled: StoredJournal | None = None) -> None:
    journaled = journaled or StoredJournal(Folder(store.root), "journal", 99, len(FRAGMENTS))
    run = journaled.run or "run"
    header, arrays = journaled.cut().part(1, snapshot, FRAGMENTS, INITIAL)
    part = CheckpointPart(
        **checkpoint_parts.write(Folder(store.root), snapshot, checkpoint_parts.SYNCER, header, arrays)
    )
    manifest = CheckpointManifest(
        snapshot=snapshot,
        run=run,
        config_hash="c",
        final=False,
        epoch=1,
        syncer_step=5,
        tokens_committed=8,
        created_at=time.time(),
        parts=[part],
        omitted=[],
    )
    checkpoints.write(Folder(store.root), manifest)


@pytest.fixture
def taken(store: RunStore) -> RunStore:
    """With checkpoints 1 and 2."""
    journaled = journal(store)
    for snapshot in (1, 2):
        take(store, snapshot, journaled)
    return store


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build(), arguments, catch_exceptions=False)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------ now


def answering(store: RunStore, answer: Callable[[], None]) -> threading.Thread:
    """Does what an orchestrator would, once it is asked."""

    def wait() -> None:
        until(lambda: store.read_json(REQUEST_FILE) is not None, "a request", pause_s=0.005)
        answer()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_now_asks_and_tells_of_the_one_that_was_cut_since(taken: RunStore) -> None:
    for _ in range(3):
        taken.grant("checkpoint", "run")  # the third was being taken already

    def answer() -> None:
        take(taken, 3)
        take(taken, 4)

    thread = answering(taken, answer)
    result = invoke("checkpoint", "now", "demo", "--json")
    thread.join()
    told = json.loads(result.stdout)
    assert (result.exit_code, told["snapshot"], told["syncer_step"]) == (0, 4, 5)
    assert abs(taken.read_json(REQUEST_FILE)["at"] - time.time()) < DEADLINE_S


def test_now_says_why_it_failed(taken: RunStore) -> None:
    writer = LogWriter(Folder(taken.root), "orchestrator", 1)
    writer.write([Event("orchestrator", 1, 0, 0.0, CheckpointFailed(2, "an older one"))])
    for _ in range(2):
        taken.grant("checkpoint", "run")

    def answer() -> None:
        writer.write([Event("orchestrator", 1, 1, 1.0, CheckpointFailed(3, "No space left"))])

    thread = answering(taken, answer)
    result = invoke("checkpoint", "now", "demo", "--json")
    thread.join()
    writer.close()
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"]["message"] == "checkpoint 3 failed: No space left"
    assert "the run trains on" in result.stderr


def test_now_is_refused_of_a_run_that_has_ended_or_is_dead(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    status(store, "finished")
    assert "has finished" in invoke("checkpoint", "now").stderr
    monkeypatch.setattr(watch, "NEWS_S", 0.0)
    status(store, "running", age_s=watch.SILENT_S + 1)
    dead = invoke("checkpoint", "now")
    assert dead.exit_code == 2 and "starting, ending or dead" in dead.stderr
    assert not store.path(REQUEST_FILE).exists()


def test_now_gives_up_in_time_and_when_the_run_ends(store: RunStore) -> None:
    late = invoke("checkpoint", "now", "--timeout", "1")
    assert late.exit_code == 2 and "no checkpoint was whole in time" in late.stderr
    store.path(REQUEST_FILE).unlink()
    thread = answering(store, lambda: status(store, "stopped"))
    ended = invoke("checkpoint", "now")
    thread.join()
    assert ended.exit_code == 2 and "ended meanwhile" in ended.stderr


# ------------------------------------------------------------------ list, verify


def test_list_shows_all_that_are_there_and_what_is_damaged(taken: RunStore) -> None:
    flip(taken.path("checkpoints/000001/manifest"))
    taken.write_text("checkpoints/000003/syncer", "being written")
    shown = invoke("checkpoint", "list")
    assert shown.exit_code == 0
    first, second, last = shown.stdout.splitlines()
    assert "1  DAMAGED: manifest: its checksum" in first
    assert "2  step 5, 8 tokens, " in second and "DAMAGED" not in second
    assert last.startswith("2 checkpoints in ")
    told = json.loads(invoke("checkpoint", "list", "--json").stdout)["checkpoints"]
    assert [(each["snapshot"], bool(each["damage"])) for each in told] == [(1, True), (2, False)]


def test_verify_passes_what_is_whole(taken: RunStore) -> None:
    shown = invoke("checkpoint", "verify")
    assert (shown.exit_code, shown.stdout.count("whole")) == (0, 3)
    told = json.loads(invoke("checkpoint", "verify", "demo", "2", "--json").stdout)
    assert told == {"ok": True, "checkpoints": [{"snapshot": 2, "damage": []}], "journal": {"damage": []}}


@pytest.mark.parametrize(
    ("victim", "told"),
    [
        ("checkpoints/000001/syncer", "DAMAGED  checkpoint 1\n         syncer: its checksum"),
        ("checkpoints/000002/manifest", "DAMAGED  checkpoint 2\n         manifest: its checksum"),
        ("journal/000000000001", "DAMAGED  journal\n         group 1: its checksum"),
        ("journal/identity", "DAMAGED  journal\n         identity: its checksum"),
    ],
)
def test_verify_names_what_is_damaged_with_the_code_of_a_failed_check(taken: RunStore, victim: str, told: str) -> None:
    flip(taken.path(victim))
    shown = invoke("checkpoint", "verify")
    assert shown.exit_code == 5
    assert told in shown.stdout and shown.stdout.count("DAMAGED") == 1
    assert json.loads(invoke("checkpoint", "verify", "--json").stdout)["ok"] is False


def test_verify_of_one_reads_no_other_and_names_those_there_are(taken: RunStore) -> None:
    flip(taken.path("checkpoints/000001/syncer"))
    flip(taken.path("journal/000000000001"))
    assert invoke("checkpoint", "verify", "demo", "2").exit_code == 0
    assert invoke("checkpoint", "verify", "demo", "1").exit_code == 5
    absent = invoke("checkpoint", "verify", "demo", "7")
    assert absent.exit_code == 2 and "there are 1, 2" in absent.stderr


def test_a_store_that_is_away_is_an_error_in_words(store: RunStore) -> None:
    recipe = {"name": "demo", "pools": [{"name": "a"}], "budget": {"tokens": 10}, "durability": {"store": "no://a/b"}}
    store.write_text("config.toml", dump(Recipe.model_validate(recipe)))
    result = invoke("checkpoint", "list")
    assert result.exit_code == 2 and 'durability.store = "no://a/b": cannot be read' in result.stderr


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("which", ["1", "newest"])
def test_export_takes_a_checkpoints_parameters_where_it_is_told_to(taken: RunStore, which: str) -> None:
    told = json.loads(invoke("export", "demo", "--checkpoint", which, "--json").stdout)
    assert told["metadata"]["checkpoint"] == {"1": "1", "newest": "2"}[which]
    assert (told["metadata"]["syncer_step"], told["metadata"]["tokens"]) == ("5", "8")
    tensors = load_file("model.safetensors")
    assert set(tensors) == {"blocks/0/up", "scale", "embed"}
    np.testing.assert_array_equal(tensors["blocks/0/up"], THETA[:6].reshape(2, 3))
    assert tensors["scale"].shape == () and tensors["scale"] == 6.0
    np.testing.assert_array_equal(tensors["embed"], INITIAL[1], "it had not committed")


@pytest.mark.parametrize("which", ["7", "0", "old", "-1", ""])
def test_export_of_a_checkpoint_that_is_not_there_names_those_that_are(taken: RunStore, which: str) -> None:
    result = invoke("export", "demo", f"--checkpoint={which}")
    assert result.exit_code == 2 and "there are 1, 2" in result.stderr
    assert not Path("model.safetensors").exists()


@pytest.mark.parametrize("part", ["syncer", "manifest"])
def test_export_of_a_damaged_checkpoint_is_refused_with_the_others(taken: RunStore, part: str) -> None:
    flip(taken.path(f"checkpoints/000002/{part}"))
    result = invoke("export", "demo", "--checkpoint", "newest")
    assert result.exit_code == 2
    assert "checkpoint 2 is damaged" in result.stderr and "give another: 1" in result.stderr


def test_without_any_checkpoint_the_list_is_empty_and_export_says_how_to_take_one(store: RunStore) -> None:
    assert json.loads(invoke("checkpoint", "list", "--json").stdout) == {"checkpoints": []}
    assert "diloco checkpoint now" in invoke("export", "demo", "--checkpoint", "newest").stderr
