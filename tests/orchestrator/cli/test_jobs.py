"""Following a job: what it prints, whether its server is there, and what its end means."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import requests
from aiohttp import web
from ray.job_submission import JobDetails, JobStatus

from orchestrator.cli import jobs
from tests.orchestrator.cli.submitting import SHARED, alone, arguments, invoke


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(tmp_path, monkeypatch)


def details(status: JobStatus, code: int | None = None, **more: Any) -> JobDetails:
    return JobDetails(
        type="SUBMISSION", submission_id="id", status=status, entrypoint="", driver_exit_code=code, **more
    )


@pytest.mark.parametrize(
    ("status", "driver", "code", "says"),
    [
        (JobStatus.SUCCEEDED, 0, 0, ""),
        (JobStatus.FAILED, 2, 2, ""),
        (JobStatus.FAILED, 5, 5, ""),
        (JobStatus.FAILED, -9, 130, "goes on without it"),
        (JobStatus.FAILED, 137, 130, "signal 9"),
        (JobStatus.FAILED, None, 4, "could not be run"),
        (JobStatus.STOPPED, None, 130, "asked to end"),
    ],
)
def test_the_exit_code_is_the_runs_own_where_its_driver_told_it(
    status: JobStatus, driver: int | None, code: int, says: str
) -> None:
    told, words = jobs.outcome(details(status, driver))
    assert told == code
    assert says in words
    assert bool(words) == bool(says)


class Server:
    """A job that prints three lines; the connection breaks after some of them, as often as it is told to."""

    lines = ("one\n", "two\n", "three\n")

    def __init__(self, breaks_after: list[int], interrupted: bool = False) -> None:
        self._breaks_after = breaks_after
        self._interrupted = interrupted
        self._ended = False

    def get_address(self) -> str:
        return "http://h:8265"

    def get_job_info(self, _: str) -> JobDetails:
        return details(JobStatus.SUCCEEDED, 0) if self._ended else details(JobStatus.RUNNING)

    async def tail_job_logs(self, _: str) -> Any:
        until = self._breaks_after.pop(0) if self._breaks_after else None
        if until is not None:
            for line in self.lines[:until]:
                yield line
        else:
            yield "".join(self.lines)  # chunks do not fall where they fell before
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60.0)
        if until is not None:
            raise RuntimeError("WebSocket connection closed unexpectedly")
        self._ended = True


def test_what_a_job_prints_is_printed_once_however_often_the_connection_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    said: list[str] = []
    ended = jobs.follow(Server(breaks_after=[1, 0, 2]), "id", said.append)  # type: ignore[arg-type]
    assert "".join(said) == "one\ntwo\nthree\n"
    assert ended.status == JobStatus.SUCCEEDED


def test_a_job_that_does_not_start_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    monkeypatch.setattr(jobs, "PENDING_S", -1.0)
    pending = [details(JobStatus.PENDING)] * 3

    class Waiting(Server):
        def get_job_info(self, _: str) -> JobDetails:
            return pending.pop() if pending else super().get_job_info(_)

    said: list[str] = []
    jobs.follow(Waiting([]), "id", said.append)  # type: ignore[arg-type]
    assert len([text for text in said if "run.control" in text]) == 1


class Frozen(Server):
    """Its job prints a line; then nothing comes any more, for a while or for ever."""

    def __init__(self, questions_answered: int, ends: bool = False) -> None:
        super().__init__([])
        self._answers, self._ends = questions_answered, ends

    def get_job_info(self, _: str) -> JobDetails:
        if not self._answers and not self._ended:
            raise requests.exceptions.ReadTimeout("frozen")
        self._answers -= 1
        self._ended |= self._ends and not self._answers
        return super().get_job_info(_)

    async def tail_job_logs(self, _: str) -> Any:
        yield "one\n"
        while not self._ended:
            await asyncio.sleep(0.01)
        yield "two\n"


def test_a_job_that_prints_nothing_for_long_is_no_server_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ASK_S", 0.02)
    monkeypatch.setattr(jobs, "LOST_S", 0.1)
    said: list[str] = []
    ended = jobs.follow(Frozen(questions_answered=20, ends=True), "id", said.append)  # type: ignore[arg-type]
    assert (said, ended.status) == (["one\n", "two\n"], JobStatus.SUCCEEDED)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated", "ignore:Unclosed connection")  # what Ray's client does
def test_rays_own_client_is_given_up_too_when_its_server_stops_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ANSWER_S", 0.3)
    monkeypatch.setattr(jobs, "ASK_S", 0.1)
    monkeypatch.setattr(jobs, "LOST_S", 0.5)
    said: list[str] = []
    with freezing_server() as address, pytest.raises(ConnectionError, match="has gone"):
        jobs.follow(jobs.connect(address), "id", said.append)
    gc.collect()  # its connection, while the filter holds
    assert said == ["one\n"]


@contextlib.contextmanager
def freezing_server() -> Iterator[str]:
    """A job server that answers until it has sent a line of the job's output, and then to nobody."""
    frozen, over = asyncio.Event(), asyncio.Event()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": ray.__version__, "ray_commit": "", "session_name": ""})

    async def info(_: web.Request) -> web.Response:
        if frozen.is_set():
            await over.wait()
        return web.json_response({"type": "SUBMISSION", "status": "RUNNING", "entrypoint": "", "submission_id": "id"})

    async def tail(request: web.Request) -> web.WebSocketResponse:
        await (told := web.WebSocketResponse()).prepare(request)
        if not frozen.is_set():
            await told.send_str("one\n")
            frozen.set()
        await over.wait()
        return told

    async def serve(listening: socket.socket) -> None:
        app = web.Application()
        app.add_routes(
            [web.get("/api/version", version), web.get("/api/jobs/id", info), web.get("/api/jobs/id/logs/tail", tail)]
        )
        await (runner := web.AppRunner(app, shutdown_timeout=0.1)).setup()
        await web.SockSite(runner, listening).start()
        await over.wait()
        await runner.cleanup()

    loop = asyncio.new_event_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: loop.run_until_complete(serve(listening)))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        loop.call_soon_threadsafe(over.set)
        thread.join()
    loop.close()


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell ignores it for what it starts behind itself
    monkeypatch.setattr(jobs, "connect", lambda _: Server([], interrupted=True))
    monkeypatch.setattr(jobs, "send", lambda *_: None)
    try:
        result = invoke(*arguments("http://h:8265"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert re.search(r"diloco status --follow --address http://h:8265 diloco-demo-\S+", result.stderr)
    assert "ray job stop --address http://h:8265" in result.stderr
    assert "one\ntwo\nthree\n" in result.stdout
    assert "ray job submit" in result.stdout


def test_json_keeps_stdout_for_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "connect", lambda _: Server([]))
    monkeypatch.setattr(jobs, "send", lambda *_: None)
    result = invoke(*arguments("http://h:8265"), "--json")
    record = json.loads(result.stdout)
    assert (record["run"], record["run_dir"], record["status"]) == ("demo", SHARED, "SUCCEEDED")
    assert (result.exit_code, record["exit_code"], record["driver_exit_code"]) == (0, 0, 0)
    assert "three" in result.stderr
    assert json.loads(invoke(*arguments("http://h:8265"), "--json", "--no-wait").stdout)["status"] == "PENDING"


def test_the_newest_job_of_a_name_is_found_and_an_unknown_one_refused_with_those_there_are() -> None:
    class Listed(Server):
        def list_jobs(self) -> list[JobDetails]:
            of = {"metadata": {"run": "a"}}
            return [
                details(JobStatus.FAILED, 2, start_time=1, **of),
                details(JobStatus.RUNNING, start_time=2, **of),
                JobDetails(type="DRIVER", job_id="1", status=JobStatus.RUNNING, entrypoint=""),
            ]

    assert jobs.find(Listed([]), "a").start_time == 2  # type: ignore[arg-type]
    with pytest.raises(jobs.InputError, match="known there: a"):
        jobs.find(Listed([]), "b")  # type: ignore[arg-type]
