"""Submission: what is refused before anything is sent, what is sent, and a run inside a job."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env.packaging import create_package
from ray.dashboard.modules.job.cli import submit

from orchestrator.cli import jobs
from orchestrator.cli.submission import EXCLUDES, carries_sources, packed, runtime_env, submission
from orchestrator.recipe.toml_text import load
from orchestrator.recipe.validation import resolve
from orchestrator.runtime import launch
from orchestrator.runtime.job import JOB_CONFIG, misplaced, submission_id
from orchestrator.store.run_store import RunStore
from outer import heap
from outer.protocol.manifest import code_digest
from tests.orchestrator.cli.submitting import SHARED, alone, arguments, invoke

ROOT = Path(__file__).parents[3]
Invoke = Callable[..., Any]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(tmp_path, monkeypatch)


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A job server that answers every request with the same status and content, and remembers the last headers."""
    world: dict[str, Any] = {"status": 200, "content": {}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            world["headers"] = dict(self.headers)
            content = json.dumps(world["content"]).encode()
            self.send_response(world["status"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", world
        listening.shutdown()
        thread.join()


# ------------------------------------------------------------------ refused before anything is sent


def test_a_wrong_recipe_and_wrong_places_are_refused_together(tmp_path: Path) -> None:
    result = invoke("submit", "recipe.toml", "--set", "sync.quorum=9", "--run-dir", "runs/a")
    assert result.exit_code == 2
    for field in ("sync.quorum = 9", "--address", '--run-dir = "runs/a"'):
        assert re.search(rf"^{re.escape(field)}: ", result.stderr, re.MULTILINE), result.stderr
    assert result.stderr.count("\n    fix: ") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--run-dir", SHARED, "--working-dir", "no-such"], "--working-dir"),
        (["--run-dir", SHARED, "--working-dir", "inner"], "recipe"),
        (["--run-dir", "s3://bucket/a"], "run-dir"),
        ([], "--run-dir"),
    ],
)
def test_each_wrong_place_is_named(tmp_path: Path, arguments: list[str], field: str) -> None:
    (tmp_path / "inner").mkdir()
    result = invoke("submit", "recipe.toml", "--address", "http://127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert f"\n{field}" in result.stderr


# ------------------------------------------------------------------ the way to the server


def test_a_server_that_is_not_there_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # Ray's client would prefer it
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    result = invoke(*arguments(f"http://127.0.0.1:{port}"), "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["kind"] == "unreachable"
    assert f"http://127.0.0.1:{port}" in result.stderr
    assert "8265" in result.stderr
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"


def test_a_server_that_accepts_and_says_nothing_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = invoke(*arguments(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert result.exit_code == 3
    assert "ReadTimeout" in result.stderr


@pytest.mark.parametrize(("status", "says"), [(401, "it asks for a token"), (403, "it refuses this token")])
def test_a_missing_or_wrong_token_is_said_with_the_fix(server: Any, status: int, says: str) -> None:
    address, world = server
    world["status"] = status
    result = invoke(*arguments(address))
    assert result.exit_code == 3
    assert says in result.stderr
    assert "RAY_AUTH_TOKEN_PATH" in result.stderr
    assert "Authorization" not in world["headers"]


def test_the_token_that_the_environment_names_is_sent_and_one_that_cannot_be_read_refused(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, world = server
    world["status"] = 403
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    missing = invoke(*arguments(address))
    assert missing.exit_code == 2
    assert f"{tmp_path / 'token'}" in missing.stderr
    (tmp_path / "token").write_text("secret\n")
    assert invoke(*arguments(address)).exit_code == 3
    assert world["headers"]["Authorization"] == "Bearer secret"
    assert "secret" not in missing.stderr


def test_what_is_no_job_server_is_said_to_be_none(server: Any) -> None:
    address, world = server
    world["content"] = {"hello": "world"}
    result = invoke(*arguments(address))
    assert result.exit_code == 3
    assert "no job server answers" in result.stderr


# ------------------------------------------------------------------ what is sent


def test_the_entrypoint_is_diloco_run_with_the_same_settings(tmp_path: Path) -> None:
    recipe = tmp_path / "recipes" / "a b.toml"
    about = {"run": "two", "config_hash": "h"}
    job = submission(recipe, tmp_path, SHARED, ["sync.quorum=1", 'name="two"'], True, about, {})
    expected = ["python", "-m", "orchestrator", "run", "recipes/a b.toml", "--run-dir", SHARED]
    expected += ["--set", "sync.quorum=1", "--set", 'name="two"', "--fresh"]
    assert shlex.split(job.entrypoint) == expected
    assert re.fullmatch(r"diloco-two-\d{8}-\d{6}-[0-9a-f]{4}", job.submission_id)
    assert job.metadata == {"run": "two", "config_hash": "h", "run_dir": SHARED}
    command = shlex.split(job.command("http://h:8265"))
    assert command[:6] == ["ray", "job", "submit", "--address", "http://h:8265", "--submission-id"]
    assert command[command.index("--") + 1 :] == expected
    assert json.loads(command[command.index("--metadata-json") + 1]) == job.metadata
    assert "/runs" in json.loads(command[command.index("--runtime-env-json") + 1])["excludes"]
    assert float(command[command.index("--entrypoint-num-cpus") + 1]) > 0


def test_the_driver_goes_where_the_runs_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's run.control reaches Ray's request, and the command that is printed."""
    asked: dict[str, Any] = {}

    class Taking:
        def get_address(self) -> str:
            return "http://h:8265"

        def submit_job(self, **request: Any) -> None:
            asked.update(request)

    monkeypatch.setattr(jobs, "connect", lambda _: Taking())
    sent = [*arguments("http://h:8265"), "--json", "--no-wait"]
    record = json.loads(invoke(*sent, "--set", 'run.control={role="control"}').stdout)
    command = shlex.split(record["command"])
    told = command[command.index("--entrypoint-label-selector") + 1]
    assert asked["entrypoint_label_selector"] == json.loads(told) == {"role": "control"}
    assert submit.make_context("submit", command[3:]).params["entrypoint_label_selector"] == told  # Ray's own parser
    assert "--entrypoint-label-selector" not in json.loads(invoke(*sent).stdout)["command"]
    assert asked["entrypoint_label_selector"] is None


def test_a_checkout_is_sent_as_it_is_and_any_other_folder_with_the_packages(tmp_path: Path) -> None:
    assert carries_sources(ROOT)
    with packed(ROOT) as folder:
        assert folder == ROOT
    (tmp_path / "own.py").write_text("x = 1\n")
    with packed(tmp_path) as folder:
        names = {entry.name for entry in folder.iterdir()}
        assert names == {"recipe.toml", "own.py", "outer", "learners", "orchestrator", "chaos"}
        assert (folder / "own.py").read_text() == "x = 1\n"
        assert digest_in(folder) == code_digest()
    assert not folder.exists()
    assert (tmp_path / "own.py").exists()


SECRET = (
    "certs/ca.crt",
    "tls/10.0.0.3/node.key",
    "ca.key",
    "server.pem",
    "token",
    "deploy/token",
    ".env",
    "a/.env.local",
)


@pytest.mark.parametrize("by", ["diloco submit", ".rayignore", ".gitignore"])
def test_no_keys_and_tokens_are_sent(tmp_path: Path, by: str) -> None:
    folder, package = tmp_path / "checkout", tmp_path / "package.zip"
    for name in (*SECRET, "own.py", "tokens.py", "certs.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    if by != "diloco submit":
        shutil.copy(ROOT / by, folder)
    excludes = runtime_env(folder)["excludes"] if by == "diloco submit" else []
    create_package(str(folder), package, include_gitignore=by == ".gitignore", excludes=excludes)
    sent = {name for name in zipfile.ZipFile(package).namelist() if not name.endswith("/")}
    assert sent - {by} == {"own.py", "tokens.py", "certs.py"}


def test_the_processes_of_a_job_and_of_a_local_cluster_have_one_heap_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in heap.ONE_HEAP:  # another test of this process may have set it
        monkeypatch.delenv(name, raising=False)
    assert runtime_env(tmp_path)["env_vars"] == heap.ONE_HEAP
    found: dict[str, str] = {}

    def init(**options: Any) -> None:
        found.update(os.environ)
        raise InterruptedError

    monkeypatch.setattr(launch.ray, "init", init)
    monkeypatch.setattr(launch, "use_auth_settings", lambda: None)
    recipe, store = resolve(load(ROOT / "deploy" / "recipes" / "demo.toml")), RunStore(tmp_path / "run")
    store.create()
    with pytest.raises(InterruptedError), launch.local_cluster(recipe, store):
        pass
    assert found.items() >= heap.ONE_HEAP.items()
    assert os.environ.get("MALLOC_ARENA_MAX") is None


def test_rays_own_command_leaves_out_what_ours_does() -> None:
    ignored = [line for line in (ROOT / ".rayignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == list(EXCLUDES)


def digest_in(folder: Path) -> str:
    """The digest of the sources that a process in this folder would compute."""
    found: dict[str, Any] = {"__file__": str(ROOT / "outer" / "protocol" / "manifest.py"), "__name__": "there"}
    source = (folder / "outer" / "protocol" / "manifest.py").read_text()
    exec(
        source.replace("Path(__file__).resolve()", f"Path({str(folder / 'outer' / 'protocol' / 'manifest.py')!r})"),
        found,
    )
    told: str = found["code_digest"]()
    return told


# ------------------------------------------------------------------ inside a job


@pytest.mark.parametrize("run_dir", [None, "runs/a", "inside"])
def test_inside_a_job_a_run_keeps_out_of_the_jobs_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_dir: str | None
) -> None:
    about = {"runtime_env": {"working_dir": "gcs://a.zip"}, "metadata": {"job_submission_id": "id-1"}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(about))
    given = str(tmp_path / "run") if run_dir == "inside" else run_dir
    result = invoke("run", "recipe.toml", *(["--run-dir", given] if given else []))
    assert result.exit_code == 2
    assert "\n--run-dir" in result.stderr
    assert "file:///shared/runs/NAME" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
    assert submission_id() == "id-1"


def test_any_shared_folder_will_do_inside_a_job_and_any_at_all_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outside = tmp_path.parent / "shared"
    assert misplaced(None, tmp_path / "runs" / "a", tmp_path) == []
    assert submission_id() is None
    monkeypatch.setenv(JOB_CONFIG, json.dumps({"runtime_env": {"working_dir": "gcs://a.zip"}}))
    assert misplaced(f"file://{outside}", outside, tmp_path) == []
    monkeypatch.setenv(JOB_CONFIG, json.dumps({"runtime_env": {}}))
    assert misplaced(str(tmp_path / "a"), tmp_path / "a", tmp_path) == [], "the folder is nobody's copy"
