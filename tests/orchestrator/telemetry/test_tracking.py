"""A run's curves in experiment trackers: from the log alone, the same however it is cut, and never twice."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event as Record

from benchmarks.harness.seed_run import SeedRun
from orchestrator.cli.track import beside
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated
from orchestrator.eventlog.reader import read_run
from orchestrator.eventlog.tables import part_of
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry import tracking
from orchestrator.telemetry.tracking import SERIES, Curves, Point
from outer.protocol.facts import Committed
from tests.orchestrator.calling import invoke
from tests.replay.shaken import recipe
from tests.waiting import until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "points"
    text = folder.parent / "text"
    text.mkdir()
    (text / "one.txt").write_text("some words " * 100)
    sets = {"sets": [{"name": "words", "path": str(text)}]}
    made = recipe(30)
    made = made.model_copy(update={"eval": made.eval.model_validate(made.eval.model_dump() | sets)})
    SeedRun(made, folder).train()
    return folder


def points(events: list[Event], size: int) -> list[Point]:
    curves = Curves(every=6)
    parts = [part_of(events[first : first + size], first) for first in range(0, len(events), size)]
    return [point for part in parts for point in curves.take(part)]


def test_points_are_the_same_however_the_log_is_cut(run: Path) -> None:
    events = read_run(run)
    whole = points(events, len(events))
    for size in (1, 7, 100):
        for one, other in zip(points(events, size), whole, strict=True):
            assert (one.step, one.at) == (other.step, other.at) and one.values == pytest.approx(other.values)


def test_points_say_what_the_log_says(run: Path) -> None:
    events = read_run(run)
    commits = [event for event in events if isinstance(event.fact, Committed)]
    evaluations = [event.fact for event in events if isinstance(event.fact, Evaluated)]
    found = points(events, len(events))
    held_out = [(each.step, each.values["loss/held_out"]) for each in found if "loss/held_out" in each.values]
    assert held_out == [(fact.syncer_step, fact.loss) for fact in evaluations]
    others = [each.values["eval/words/loss"] for each in found if "loss/held_out" in each.values]
    assert others == [fact.metrics["words/loss"] for fact in evaluations] and len(others) > 1
    rest = [each for each in found if "loss/held_out" not in each.values]
    assert [each.step // 6 for each in rest] == list(range(len(rest))) and len(rest) > 3
    tokens = {event.fact.syncer_step: event.fact.tokens_committed for event in commits}
    assert all(each.values["tokens/committed"] == tokens[each.step] for each in rest)
    assert all(each.values["participation"] == 1.0 and each.values["faults/learners_lost"] == 0.0 for each in rest)
    assert all(0 < each.values["loss/train"] < 10 for each in rest)


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """What TensorBoard would read."""
    found = []
    for file in sorted(folder.glob("events.*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            record = Record.FromString(content[12 : 12 + length])
            found += [(value.tag, record.step, value.simple_value) for value in record.summary.value]
            content = content[16 + length :]
    return found


def test_tensorboard_gets_every_point_once_also_the_second_time(run: Path, tmp_path: Path) -> None:
    words = ["track", str(run), "--to", f"tensorboard:{tmp_path}", "--every", "6"]
    folder = tmp_path / recipe(30).name
    folder.mkdir()
    (folder / "events.other").write_bytes(b"")
    for _ in range(2):
        done = invoke(*words)
        assert done.exit_code == 0, done.stderr
        got = scalars(folder)
        wanted = points(read_run(run), 10_000)
        assert sorted((tag, step) for tag, step, _ in got) == sorted(
            (name, point.step) for point in wanted for name in point.values
        )
    assert (folder / "events.other").exists(), "files of others stay"


def test_a_damaged_log_is_told(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    segment = next((copy / "log/syncer/segments").rglob("*"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    done = invoke("track", str(copy), "--to", f"tensorboard:{tmp_path}")
    assert done.exit_code == 5 and "damaged: " in done.stderr


class Half:
    """A tracker that has the first points already."""

    def __init__(self, target: str, name: str, identity: str) -> None:
        self.newest = {"tokens/committed": 11}
        self.steps: dict[str, list[int]] = {series: [] for series in SERIES}
        made.append(self)

    def write(self, point: Point) -> None:
        self.steps[point.series].append(point.step)

    def flush(self) -> None: ...

    def close(self) -> None: ...


made: list[Half] = []


class Dead(Half):
    def write(self, point: Point) -> None:
        raise ConnectionError("away")


def test_what_a_tracker_has_is_not_sent_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking.SINKS, "half", Half)
    assert invoke("track", str(run), "--to", "half:x", "--every", "6").exit_code == 0
    committed, held_out = (made[-1].steps[series] for series in SERIES)
    assert min(committed) > 11 and held_out[0] == 0, "an evaluation may be of an older step than what came before it"


def test_beside_a_run_points_are_sent_as_its_log_grows_and_what_fails_is_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tracking.SINKS, "half", Half)
    monkeypatch.setitem(tracking.SINKS, "dead", Dead)
    folder, told, at = tmp_path / "run", list[str](), len(made)
    folder.mkdir()
    shutil.copy(run / "config.toml", folder)
    with beside(RunStore(folder), ["half:x"], told.append):
        shutil.copytree(run / "log", folder / "log")
        until(lambda: made[at].steps["loss/held_out"], "the log is read")
    assert made[at].steps["loss/held_out"] == sorted(set(made[at].steps["loss/held_out"])) and told == []
    with beside(RunStore(folder), ["dead:x"], told.append):
        until(lambda: told, "that it is away is told")
    assert "ConnectionError: away" in told[0] and "the run does not notice" in told[0]


def test_a_tracker_that_cannot_be_used_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setitem(tracking.SINKS, "dead", Dead)
    monkeypatch.setattr(tracking.importlib, "import_module", without)  # type: ignore[attr-defined]
    for to, said in (
        ("tensorbord:x", "did you mean tensorboard"),
        ("tensorboard", "no KIND:TARGET"),
        ("wandb:x", "pip install -e '.[wandb]'"),
        ("dead:x", "ConnectionError: away"),
    ):
        done = invoke("track", str(run), "--to", to)
        assert done.exit_code == 2 and said in done.stderr
