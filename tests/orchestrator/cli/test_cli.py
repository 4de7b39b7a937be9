"""The command line: exit codes, what is printed where, and that wrong input starts and leaves nothing."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import diloco
import orchestrator.runtime
from docs.commands import tree
from orchestrator.__main__ import CHAOS
from orchestrator.analysis.verdicts import Verdict
from orchestrator.cli.app import PROVE, CommandEntry, build
from orchestrator.cli.errors import heard_or_not, reported
from orchestrator.cli.recipes import foreign_packages
from orchestrator.recipe.toml_text import load
from orchestrator.runtime.job import run_until_signalled, uninterrupted
from orchestrator.store import run_lock, watch
from orchestrator.store.run_lock import RunLock
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
LOCAL = str(ROOT / "deploy" / "recipes" / "local.toml")
HERE = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}


def invoke(*words: str) -> Any:
    return CliRunner().invoke(build(starter=starter), words, catch_exceptions=False)


def starter() -> None:
    """Stands for the one that the composition root hands over."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for orchestrator.runtime.launch: records the call, returns `summary`, raises `error` where one is set."""
    world: dict[str, Any] = {
        "summary": {"name": "local", "ok": True, "state": "finished", "checks": [], "eval_loss": 1.5},
        "error": None,
    }

    def record(*call: Any, note: Any = None) -> dict[str, Any]:
        world["call"] = call
        *_, on_status, _, _ = call
        on_status({"run": {"name": "local", "state": "running"}})
        if world["error"] is not None:
            raise world["error"]
        return dict(world["summary"])

    launch = types.ModuleType("orchestrator.runtime.launch")
    vars(launch).update(run_embedded=record, run_attached=record)
    monkeypatch.setitem(sys.modules, "orchestrator.runtime.launch", launch)
    monkeypatch.setattr(orchestrator.runtime, "launch", launch, raising=False)
    return world


# ------------------------------------------------------------------ wrong input

WRONG = """
name = "wrong"
task = "no.such.module:Model"
[data]
path = "/no/such/folder"
[inner]
optimizer = "adamv"
[sync]
quorum = 3
[budget]
tokens = 1000
[[pools]]
name = "a"
learners = 2
"""


def children_s() -> float:
    """CPU time of the processes waited for so far: unlike the time of day, it does not count what others do."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_error_at_once_with_exit_code_2_within_5_s_of_work_without_ray_or_a_folder(tmp_path: Path) -> None:
    recipe = tmp_path / "wrong.toml"
    recipe.write_text(WRONG)
    before_s = children_s()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom orchestrator.cli.app import build\n"
            "try:\n    build()()\nfinally:\n    print('ray' in sys.modules, 'jax' in sys.modules)",
            *("run", str(recipe), "--set", f"run.folder={tmp_path}/out/run"),
        ],
        cwd=tmp_path,
        env=HERE,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert children_s() - before_s < 5.0
    assert done.returncode == 2
    assert done.stdout.strip() == "False True"
    for field in ("sync.quorum = 3", "inner.optimizer", "data.path", "task"):
        assert len(re.findall(rf"^{re.escape(field)}\b", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert done.stderr.count("\n    fix: ") == 4 and done.stderr.startswith("checking the recipe\n")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


def test_errors_are_strict_json_on_stdout_when_asked_for() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for words, told in (
        (("run", LOCAL, "--set", "sync.quorm=3", "--set", "sync.H=-5"), {"sync.quorm": 3, "sync.H": -5}),
        (("plan", LOCAL, "--node", "CPU=nan"), {"--node CPU": "nan"}),
        (("plan", LOCAL, "--node", "CPU=-inf"), {"--node CPU": "-inf"}),
    ):
        result = invoke(*words, "--json")
        error = json.loads(result.stdout, parse_constant=refuse)["error"]
        assert (result.exit_code, error["code"], error["kind"]) == (2, 2, "input")
        assert {problem["field"]: problem["value"] for problem in error["problems"]} == told
        assert all(problem["message"] and problem["fix"] for problem in error["problems"])


def test_other_rooms_add_commands_and_words_that_are_not_understood_are_told_with_the_usage() -> None:
    group = typer.Typer()
    group.command("hello")(lambda: typer.echo("from elsewhere"))
    group.command("goodbye")(lambda: None)
    app = build(extensions=[CommandEntry(PROVE, "other", "Say something", lambda: group)])
    assert CliRunner().invoke(app, ["other", "hello"]).stdout == "from elsewhere\n"
    for words, says in (
        (["status", "--jsn"], "--jsn"),
        (["no-such-command"], "no-such-command"),
        (["scale", "local", "many"], "'N'"),
        (["plan"], "Missing"),
        (["other", "hello", "--loud"], "--loud"),
    ):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr and "Usage: " in result.stderr


def test_a_folder_that_is_not_empty_is_gone_on_with_or_refused_and_a_run_in_it_removed_only_when_asked(
    trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("run", LOCAL).exit_code == 0
    store = RunStore.named("local")
    store.write_json("status.json", {"run": {"state": "finished"}, "written_at": time.time()})
    again = invoke("run", LOCAL)
    assert again.exit_code == 2
    assert "it has finished" in again.stderr
    reached = {"state": "finished", "syncer_step": 50, "tokens_committed": 10**9}
    store.write_json("status.json", {"run": reached, "written_at": time.time()})
    kept = store.read_text("config.toml")
    again = invoke("run", LOCAL, "--set", "budget.tokens=900")
    assert again.exit_code == 2 and "was reached by the run" in again.stderr
    assert store.read_text("config.toml") == kept
    store.write_json("status.json", {"run": {"state": "running"}, "written_at": time.time() - 3600})
    monkeypatch.setattr(run_lock, "RENEW_S", 0.1)
    other = RunLock(Folder(store.root), "theirs")
    other.take()
    other.keep()  # as its orchestrator does while it ends, too, and whatever the clocks say
    for options in ([], ["--fresh"]):
        refused = invoke("run", LOCAL, *options)
        assert refused.exit_code == 2 and "works on this run" in refused.stderr and "Traceback" not in refused.stderr
    other.release()
    store.write_text("left-over", "")
    on = invoke("run", LOCAL)
    assert on.exit_code == 0 and "resuming the run" in on.stderr
    assert "is not what the run in this folder was begun with" in invoke("run", LOCAL, "--set", "seed=8").stderr
    assert store.path("left-over").exists()
    assert invoke("run", LOCAL, "--fresh").exit_code == 0
    assert not store.path("left-over").exists() and (tmp_path / "runs" / "local.1" / "left-over").exists()
    assert invoke("run", LOCAL, "--set", "name=second").exit_code == 0
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.txt").write_text("mine")
    assert "holds no run" in invoke("run", LOCAL, "--set", "run.folder=papers", "--fresh").stderr
    assert (tmp_path / "papers" / "a.txt").exists()
    assert "is a file" in invoke("run", LOCAL, "--set", "run.folder=papers/a.txt").stderr
    assert "object storage is not supported" in invoke("run", LOCAL, "--set", "run.folder=s3://bucket/a").stderr


def test_foreign_packages_of_our_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    assert not foreign_packages(tmp_path), "a folder without __init__.py hides nothing"
    (tmp_path / "outer" / "__init__.py").write_text("")
    (tmp_path / "chaos.py").write_text("")
    result = invoke("run", LOCAL)
    assert result.exit_code == 2
    assert str(tmp_path / "outer") in result.output
    assert str(tmp_path / "chaos.py") in result.output
    assert not (tmp_path / "runs").exists()


# ------------------------------------------------------------------ run


def test_run_hands_over_recipe_store_starter_and_prints_the_summary_or_it_alone_as_json(
    trained: dict[str, Any],
) -> None:
    result = invoke("run", LOCAL, "--set", "name=mine", "--set", "pools.0.learners=2")
    recipe, store, given, *_ = trained["call"]
    assert result.exit_code == 0
    assert (recipe.name, len(recipe.learners), given) == ("mine", 2, starter)
    assert store.root == Path.cwd() / "runs" / "mine"
    assert load(store.path("config.toml")).config_hash == recipe.config_hash
    assert "placing and starting learners" in result.stderr
    assert "held-out loss      1.500" in result.stdout
    assert str(store.root) in result.stdout
    alone = invoke("run", LOCAL, "--json")
    assert json.loads(alone.stdout) == trained["summary"]
    assert "placing and starting learners" in alone.stderr


def test_python_trains_by_a_file_or_a_recipe_as_the_command_does(trained: dict[str, Any]) -> None:
    run = diloco.run(LOCAL, ["name=mine"])
    recipe, _, _, *_ = trained["call"]
    assert (recipe.name, run.store.root) == ("mine", Path.cwd() / "runs" / "mine")
    again = diloco.run(recipe.model_copy(update={"name": "yours"}), ["pools.0.learners=2"], address="10.0.0.1:6379")
    (given, _, address, *_), name = trained["call"], again.recipe.name
    assert (given.name, len(given.learners), address, name) == ("yours", 2, "10.0.0.1:6379", "yours")
    with pytest.raises(diloco.InputError, match=r"sync\.quorum"):
        diloco.run(LOCAL, ["sync.quorum=9"])


def test_an_address_goes_to_a_cluster(trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("run", LOCAL, "--address", "10.0.0.1:6379").exit_code == 0
    assert trained["call"][2:4] == ("10.0.0.1:6379", starter)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert invoke("run", LOCAL, "--set", "name=two").exit_code == 0
    assert trained["call"][2:4] == ("10.0.0.2:6379", starter)


def test_the_exit_code_tells_how_a_run_ended(trained: dict[str, Any]) -> None:
    def check(status: str) -> list[dict[str, str]]:
        return [{"name": "books", "status": status, "reason": "x"}]

    for number, (ok, state, checks, code) in enumerate(
        (
            (True, "finished", [], 0),
            (False, "finished", check("violated"), 5),
            (False, "finished", check("unknown"), 5),
            (False, "finished", check("pass"), 5),
            (False, "failed", check("violated"), 4),
            (False, "stopped", [], 0),
        )
    ):
        trained["summary"] |= {"ok": ok, "state": state, "checks": checks}
        assert invoke("run", LOCAL, "--set", f"name=run-{number}").exit_code == code, (ok, state, checks)


def test_what_run_raises_becomes_a_message_and_a_code(trained: dict[str, Any]) -> None:
    errors: tuple[tuple[BaseException, int, str], ...] = (
        (ConnectionError("no answer"), 3, "unreachable"),
        (RuntimeError("boom"), 4, "failed"),
        (OSError(errno.EROFS, "read-only file system", "/ro/x"), 2, "input"),
        (OSError(errno.ENOSPC, "no space", "/full"), 4, "failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
    )
    for number, (error, code, kind) in enumerate(errors):
        trained["error"] = error
        result = invoke("run", LOCAL, "--json", "--set", f"name=run-{number}")
        assert (result.exit_code, json.loads(result.stdout)["error"]["kind"]) == (code, kind)
        assert str(getattr(error, "filename", None) or error) in result.stderr
        assert ("Traceback" in result.stderr) == (code == 4)


# ------------------------------------------------------------------ init, status, stop


def test_an_interruption_at_the_end_of_a_run_lets_its_processes_end_and_its_summary_be_shown(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(recipe: Any, store: RunStore, *others: Any, note: Any) -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            store.write_json("summary.json", trained["summary"])

    monkeypatch.setattr(orchestrator.runtime.launch, "run_embedded", ends)
    before = signal.getsignal(signal.SIGTERM)
    result = invoke("run", LOCAL)
    assert result.exit_code == 0 and "local: finished, ok" in result.stdout
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_a_command_that_serves_between_its_tasks_steps() -> None:
    ended = []

    async def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(10_000))  # raised by a handler it would come here at the latest
        ended.append("step")

    async def serve() -> None:
        asyncio.get_running_loop().create_task(step())
        await asyncio.Event().wait()

    run_until_signalled(serve())
    assert ended == ["step"]


def test_init_writes_a_recipe_that_runs_and_overwrites_nothing(trained: dict[str, Any]) -> None:
    assert invoke("init", "my-run.toml").exit_code == 0
    assert load("my-run.toml").name == "my-run"
    assert not load("my-run.toml").chaos.active
    assert invoke("run", "my-run.toml").exit_code == 0
    Path("my-run.toml").write_text("mine")
    assert invoke("init", "my-run.toml").exit_code == 2
    assert Path("my-run.toml").read_text() == "mine"
    assert invoke("init", "no/such/folder.toml").exit_code == 2


def test_status_reads_the_store_and_says_how_old_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "NEWS_S", 0.0)
    RunStore.named("demo").write_json(
        "status.json", {"run": {"name": "demo", "state": "running"}, "written_at": time.time() - 75}
    )
    shown = invoke("status", "demo")
    assert shown.exit_code == 0
    assert "demo: running" in shown.stdout
    assert re.search(r"written 1:1\d ago", shown.stdout)
    assert invoke("status").stdout.startswith("demo: running")  # the only run there is
    assert invoke("status", "runs/demo").exit_code == 0
    assert 70 < json.loads(invoke("status", "demo", "--json").stdout)["age_s"] < 80
    assert "NOT how it is now" in shown.stdout


def test_an_unknown_run_is_refused_with_the_known_ones() -> None:
    for name in ("demo", "other"):
        RunStore.named(name).write_json("status.json", {})
    for arguments in (["dmeo"], [], ["elsewhere/runs"]):
        result = invoke("status", *arguments)
        assert result.exit_code == 2
        assert "known runs: demo, other" in result.stderr
    assert 'did you mean "demo"?' in invoke("stop", "dmeo").stderr


def test_stop_leaves_a_request_in_the_store_of_a_run_that_has_not_ended() -> None:
    store = RunStore.named("demo")
    store.write_json("status.json", {"run": {"state": "finished"}})
    assert "has finished" in invoke("stop", "demo").stdout
    assert not store.path("stop").exists()
    store.write_json("status.json", {"run": {"state": "running"}})
    assert invoke("stop", "demo", "--reason", "enough").exit_code == 0
    request = store.read_json("stop")
    assert request["reason"] == "enough"
    assert abs(request["at"] - time.time()) < DEADLINE_S


def test_runs_are_listed_with_how_far_they_are_and_why_they_ended_the_last_written_first() -> None:
    assert "no runs are kept in" in invoke("ls").stdout
    ended = {"type": "Ended", "status": "True", "reason": "Stopped", "message": "asked for"}
    run = {"state": "stopped", "progress": 0.4, "eval_loss": 2.5, "loss_unit": "nats/token", "conditions": [ended]}
    RunStore.named("old").write_json("status.json", {"run": run, "written_at": time.time() - 7200})
    going = {"run": {"state": "running"}, "learners": [{"name": "learner-a-0", "state": "down", "last_fault": "kill"}]}
    RunStore.named("new").write_json("status.json", going | {"written_at": time.time()})
    RunStore.named("dead").write_json("status.json", going | {"written_at": time.time() - 3600})
    RunStore.named("torn").write_text("status.json", "{")
    told = {row["run"]: (row["state"], row["why"]) for row in json.loads(invoke("ls", "--json").stdout)["runs"]}
    assert list(told) == ["new", "dead", "old", "torn"]
    assert told["new"] == ("running", "away: learner-a-0, down, kill")
    assert told["old"] == ("stopped", "asked for")
    assert told["dead"][0] == "lost" and "resumes it" in told["dead"][1] and "damaged" in told["torn"][1]
    shown = invoke("ls", "runs").stdout
    assert re.search(r"^old +stopped +40.0 % +2.500 nats/token +2:00:0\d ago +asked for *$", shown, re.MULTILINE), shown


def test_commands_and_runs_are_completed_and_the_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("demo", "two"):
        RunStore.named(name).write_json("status.json", {})
    typing = (("diloco sta", "status"), ("diloco status t", "two"), ("diloco chaos inject kill syncer d", "demo"))
    for typed, expected in typing:
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_DILOCO_COMPLETE": "complete_bash"}
        done = CliRunner().invoke(build(extensions=[CHAOS]), [], prog_name="diloco", env=words)
        assert done.stdout.split() == [expected]
    assert re.fullmatch(r"diloco \d+\.\d+\.\d+\n", invoke("--version").stdout)
    assert "Usage: " in invoke("-h").stdout and "Usage: " in invoke("checkpoint", "list", "-h").stdout


def test_every_command_on_a_run_takes_it_as_one_argument_that_may_be_left_out() -> None:
    found = {words: [each for each in command.params if each.name == "run"] for words, command in tree().items()}
    taking = {words: params[0] for words, params in found.items() if params}
    assert len(taking) >= 12
    for words, parameter in taking.items():
        assert (parameter.param_type_name, parameter.metavar, parameter.required) == ("argument", "RUN", False), words
        assert parameter._custom_shell_complete is not None, words


@pytest.mark.parametrize("words", [["--help"], ["status", "demo"], ["ls"]])
def test_help_and_status_start_at_once_for_they_import_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    """Nor does a run before its first words."""
    RunStore.named("demo").write_json("status.json", {})
    heavy = ("ray", "jax", "numpy", "pyarrow", "orchestrator.recipe.config", "chaos")
    code = (
        "import sys\nimport orchestrator.cli.run\nfrom orchestrator.__main__ import main\n"
        f"try:\n    main()\nfinally:\n    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_help_keeps_what_is_in_brackets() -> None:
    shown = " ".join(re.sub("[│\n]", " ", invoke("data", "prepare", "--help").stdout).split())
    assert 'shards for [data] kind = "tokens"' in shown and "tokenizer.json [bytes]" in shown


# ------------------------------------------------------------------ check, and output that nobody reads


def test_check_passes_only_what_is_known_to_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert invoke("check", str(tmp_path)).exit_code == 5, "an empty folder keeps nothing"
    assert invoke("check", "no-such-run").exit_code == 2
    verdicts: list[Verdict] = []
    monkeypatch.setattr("orchestrator.analysis.folder.check_run", lambda *_: verdicts)
    for code, *statuses in (
        (0, "pass", "pass"),
        (0, "pass", "idle"),
        (5, "pass", "violated"),
        (5, "pass", "unknown"),
        (5, "idle"),
        (5,),
    ):
        verdicts[:] = [Verdict(f"check-{number}", "a promise", each, "why") for number, each in enumerate(statuses)]  # type: ignore[arg-type]
        shown = invoke("check", str(tmp_path), "--json")
        told = json.loads(shown.stdout)
        assert (shown.exit_code, told["ok"]) == (code, code == 0)
        assert [check["status"] for check in told["checks"]] == statuses


def test_a_reader_of_our_output_may_close_it_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        """A pipe that nobody reads."""

        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with (tmp_path / "stdout").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)  # rich closes what is behind it
        with pytest.raises(BrokenPipeError), reported():
            Console(file=Gone()).print("a table")
        monkeypatch.undo()


# ------------------------------------------------------------------ ends of the shell


def test_work_goes_on_when_nobody_reads_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody, monkeypatch.context() as patched:
        for name in ("stdout", "stderr"):
            patched.setattr(sys, name, nobody)
        with heard_or_not(), reported():
            for _ in range(2):
                Console().print("a table")
                typer.echo("a line", err=True)
                sys.stdout.flush()


def test_a_command_that_is_started_with_closed_streams_works() -> None:
    command = shlex.join([sys.executable, "-m", "orchestrator", "ls"])
    for closed in (">&-", "2>&- <&-"):
        done = subprocess.run(["bash", "-c", f"{command} {closed}"], env=HERE, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("ignored", "number", "ends"),
    [("", signal.SIGTERM, True), ("", signal.SIGHUP, True), ("trap '' HUP;", signal.SIGHUP, False)],
    ids=["terminated", "hung up", "nohup"],
)
def test_a_signal_leaves_no_folder(tmp_path: Path, ignored: str, number: signal.Signals, ends: bool) -> None:
    code = (
        "import tempfile; from orchestrator.runtime.job import prepare_process; prepare_process()\n"
        f"with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):\n"
        "    print('begun', flush=True); input(); print('went on', flush=True)"
    )
    process = subprocess.Popen(
        ["bash", "-c", f"{ignored} exec {shlex.join([sys.executable, '-c', code])}"],
        env=HERE, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(number)
    said, _ = process.communicate(None if ends else "\n", timeout=DEADLINE_S)
    assert (said == "", list(tmp_path.iterdir())) == (ends, [])
