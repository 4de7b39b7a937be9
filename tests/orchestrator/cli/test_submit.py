"""Submission: what is refused before anything is sent, what is sent, and a run inside a job."""

from __future__ import annotations

import http.server
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.runtime_env.packaging import create_package

from orchestrator.cli import jobs
from orchestrator.cli.submission import EXCLUDES, carries_sources, packed, runtime_env, submission
from orchestrator.recipe.toml_text import load, template
from orchestrator.recipe.validation import resolve
from orchestrator.runtime import launch
from orchestrator.runtime.job import JOB_CONFIG, misplaced, submission_id
from orchestrator.store.run_store import RunStore
from outer import heap
from outer.protocol.manifest import code_digest
from tests.orchestrator.calling import invoke

ROOT = Path(__file__).parents[3]


SHARED = "file:///shared/runs/a"


@pytest.fixture(autouse=True)
def _recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(template("demo"))


def arguments(address: str) -> list[str]:
    return ["submit", "recipe.toml", "--address", address, "--set", f"run.folder={SHARED}"]


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
    result = invoke("submit", "recipe.toml", "--set", "sync.quorum=9", "--set", "run.folder=runs/a")
    assert result.exit_code == 2
    for field in ("sync.quorum = 9", "--address", 'run.folder = "runs/a"'):
        assert re.search(rf"^{re.escape(field)}: ", result.stderr, re.MULTILINE), result.stderr
    assert result.stderr.count("\n    fix: ") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_each_wrong_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for given, field in (
        (["--set", f"run.folder={SHARED}", "--working-dir", "no-such"], "--working-dir"),
        (["--set", f"run.folder={SHARED}", "--working-dir", "inner"], "recipe"),
        (["--set", "run.folder=s3://bucket/a"], "run.folder"),
        ([], "run.folder"),
    ):
        result = invoke("submit", "recipe.toml", "--address", "http://127.0.0.1:1", *given)
        assert result.exit_code == 2 and f"\n{field}" in result.stderr, given


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
    monkeypatch.setattr(jobs, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and says nothing
        result = invoke(*arguments(f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert result.exit_code == 3 and "ReadTimeout" in result.stderr


def test_who_answers_otherwise_than_a_job_server_is_said_with_the_fix(server: Any) -> None:
    address, world = server
    for status, content, says in (
        (401, {}, "it asks for a token"),
        (403, {}, "it refuses this token"),
        (200, {"hello": "world"}, "no job server answers"),
    ):
        world.update(status=status, content=content)
        result = invoke(*arguments(address))
        assert result.exit_code == 3 and says in result.stderr
        assert status == 200 or "RAY_AUTH_TOKEN_PATH" in result.stderr
        assert "Authorization" not in world["headers"]


def test_the_token_that_the_environment_names_is_sent_and_one_that_cannot_be_read_refused(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, world = server
    world["status"] = 403
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    missing = invoke(*arguments(address))
    assert missing.exit_code == 2 and f"{tmp_path / 'token'}" in missing.stderr
    (tmp_path / "token").write_text("secret\n")
    assert invoke(*arguments(address)).exit_code == 3
    assert world["headers"]["Authorization"] == "Bearer secret"


# ------------------------------------------------------------------ what is sent


def test_the_entrypoint_is_diloco_run_with_the_same_settings(tmp_path: Path) -> None:
    recipe = tmp_path / "recipes" / "a b.toml"
    about = {"run": "two", "config_hash": "h"}
    job = submission(recipe, tmp_path, SHARED, ["sync.quorum=1", 'name="two"'], True, about, {})
    expected = ["python", "-m", "orchestrator", "run", "recipes/a b.toml"]
    expected += ["--set", "sync.quorum=1", "--set", 'name="two"', "--fresh"]
    assert shlex.split(job.entrypoint) == expected
    assert re.fullmatch(r"diloco-two-\d{8}-\d{6}-[0-9a-f]{4}", job.submission_id)
    assert job.metadata == {"run": "two", "config_hash": "h", "run_folder": SHARED}


def test_the_driver_goes_where_the_runs_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's run.control reaches Ray's request."""
    asked: dict[str, Any] = {}

    class Taking:
        def get_address(self) -> str:
            return "http://h:8265"

        def submit_job(self, **request: Any) -> None:
            asked.update(request)

    monkeypatch.setattr(jobs, "connect", lambda _: Taking())
    sent = [*arguments("http://h:8265"), "--json", "--no-wait"]
    invoke(*sent, "--set", 'run.control={role="control"}')
    assert asked["entrypoint_label_selector"] == {"role": "control"}
    invoke(*sent)
    assert asked["entrypoint_label_selector"] is None


REGIONS = """
[[pools]]
name = "eu"
region = "eu"
joined = true
[[pools]]
name = "ap"
region = "ap"
joined = true
[[pools]]
name = "sa"
region = "sa"
joined = true
[durability]
store = "s3://bucket/two"
"""


def test_one_command_submits_a_run_and_has_each_region_join_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").write_text(
        f'name = "two"\n{REGIONS}[[pools]]\nname = "us"\n[budget]\nsyncer_steps = 99\n'
    )
    monkeypatch.setattr("outer.journal.object_store.Remote.open", lambda remote: None)
    asked: dict[str, dict[str, Any]] = {}

    class Taking:
        def __init__(self, address: str) -> None:
            if address == "http://ap:8265":
                raise ConnectionError(f"no job server answers at {address}")
            self.address = address

        def get_address(self) -> str:
            return self.address

        def submit_job(self, **request: Any) -> None:
            asked[self.address] = request

    monkeypatch.setattr(jobs, "connect", Taking)
    words = ["submit", "recipe.toml", "--set", f"run.folder={SHARED}", "--no-wait"]
    words += [word for name in ("home", "eu", "ap") for word in ("--region", f"{name}=http://{name}:8265")]
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    assert list(asked) == ["http://home:8265", "http://eu:8265"], "the run first"
    run, join = asked.values()
    assert "orchestrator run recipe.toml" in run["entrypoint"]
    expected = "python -m orchestrator join s3://bucket/two --region eu --wait 600"
    assert (join["entrypoint"], join["submission_id"]) == (expected, f"{run['submission_id']}-eu")
    assert f"region eu: submitted {run['submission_id']}-eu" in done.stderr
    for name, why in (("ap", "no job server answers"), ("sa", "no --region sa=")):
        assert f"region {name}: {why}" in done.stderr
        assert f"to join later, there: diloco join s3://bucket/two --region {name}\n" in done.stderr
    told = json.loads(invoke(*words, "--json").stdout)["regions"]
    assert set(told["eu"]) == {"submission_id", "address"} and set(told["ap"]) == {"error", "join"}
    asked.clear()
    wrong = invoke(*words, "--region", "eur=http://h:8265", "--region", "eu=h:8265")
    assert wrong.exit_code == 2 and '--region = "eur": is no region' in wrong.stderr and '"h:8265"' in wrong.stderr
    assert not asked


@pytest.mark.parametrize(("refusals", "code"), [(3, 0), (10**6, 3)])
def test_a_cluster_whose_job_agents_are_not_up_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, refusals: int, code: int
) -> None:
    answers = iter(range(refusals))

    class Starting:
        def get_address(self) -> str:
            return "http://h:8265"

        def submit_job(self, **request: Any) -> None:
            if next(answers, None) is not None:
                words = "No available agent to submit job, please try again later."
                raise RuntimeError(f"Request failed with status code 500: {words}")

    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(jobs, "connect", lambda _: Starting())
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    done = invoke(*arguments("http://h:8265"), "--no-wait")
    assert (done.exit_code, done.stderr.count("asking again")) == (code, 1)
    assert "Traceback" not in done.stderr and (code == 0 or "please try again later" in done.stderr)


def test_a_checkout_is_sent_as_it_is_and_any_other_folder_with_the_packages(tmp_path: Path) -> None:
    assert carries_sources(ROOT)
    with packed(ROOT) as folder:
        assert folder == ROOT
    (tmp_path / "own.py").write_text("x = 1\n")
    with packed(tmp_path) as folder:
        names = {entry.name for entry in folder.iterdir()}
        assert names == {"recipe.toml", "own.py", "outer", "learners", "orchestrator", "chaos", "diloco"}
        assert (folder / "own.py").read_text() == "x = 1\n"
        source = folder / "outer" / "protocol" / "manifest.py"
        assert runpy.run_path(str(source))["code_digest"]() == code_digest()
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


@pytest.mark.parametrize("by", ["diloco submit", ".gitignore"])
def test_no_keys_and_tokens_are_sent(tmp_path: Path, by: str) -> None:
    folder, package = tmp_path / "checkout", tmp_path / "package.zip"
    for name in (*SECRET, "own.py", "tokens.py", "certs.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    excludes = runtime_env(folder)["excludes"]
    if by == ".gitignore":
        shutil.copy(ROOT / by, folder)
        excludes = []
    create_package(str(folder), package, include_gitignore=by == ".gitignore", excludes=excludes)
    sent = {name for name in zipfile.ZipFile(package).namelist() if not name.endswith("/")}
    assert sent - {by} == {"own.py", "tokens.py", "certs.py"}
    ignored = [line for line in (ROOT / ".rayignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == list(EXCLUDES), "Ray's own command leaves out the same"


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


@pytest.mark.parametrize("asked", [True, False])
def test_the_dashboard_of_a_local_cluster_is_told_with_the_file_of_its_token_and_names_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    given: dict[str, Any] = {}

    def init(**options: Any) -> Any:
        given.update(options)
        address = {"gcs_address": "127.0.0.1:7000"}
        return SimpleNamespace(address_info=address, dashboard_url="127.0.0.1:8265" if asked else None)

    monkeypatch.setattr(launch.ray, "init", init)
    monkeypatch.setattr(launch.ray, "shutdown", lambda: None)
    monkeypatch.setattr(launch.ray, "cluster_resources", dict)
    monkeypatch.setattr(launch.ray, "nodes", lambda: [{"Labels": {}}])
    monkeypatch.setattr(launch, "use_auth_settings", lambda: None)
    monkeypatch.setattr(launch, "unplaceable", lambda *about: iter(()))
    changed = [f"run.dashboard={str(asked).lower()}"]
    recipe, store = resolve(load(ROOT / "deploy" / "recipes" / "demo.toml", changed)), RunStore(tmp_path / "run")
    store.create()
    told: list[str] = []
    with launch.local_cluster(recipe, store, note=told.append):
        token = json.loads(store.read_text("cluster.json") or "")["token_path"]
    assert told == [f"Ray's dashboard: http://127.0.0.1:8265 asks for the token in {token}"] * asked
    assert given["include_dashboard"] == asked and given["job_config"].metadata == {"job_name": "diloco-demo"}


# ------------------------------------------------------------------ inside a job


def test_inside_a_job_a_run_keeps_out_of_the_jobs_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = {"runtime_env": {"working_dir": "gcs://a.zip"}, "metadata": {"job_submission_id": "id-1"}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(about))
    for given in ([], ["--set", "run.folder=runs/a"], ["--set", f"run.folder={tmp_path}/run"]):
        result = invoke("run", "recipe.toml", *given)
        assert result.exit_code == 2 and "\nrun.folder" in result.stderr
        assert "/shared/runs/NAME" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
    assert submission_id() == "id-1"
    outside = tmp_path.parent / "shared"
    assert misplaced(f"file://{outside}", outside, tmp_path) == []
    monkeypatch.setenv(JOB_CONFIG, json.dumps({"runtime_env": {}}))
    assert misplaced(str(tmp_path / "a"), tmp_path / "a", tmp_path) == [], "the folder is nobody's copy"
    monkeypatch.delenv(JOB_CONFIG)
    assert misplaced(None, tmp_path / "runs" / "a", tmp_path) == [] and submission_id() is None
