"""Following a job: what it prints, whether its server is there, and what its end means."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from ray.job_submission import JobDetails, JobStatus

from orchestrator.cli import jobs
from orchestrator.recipe.toml_text import template
from tests.orchestrator.calling import invoke
from tests.orchestrator.cli.test_submit import SHARED, arguments


@pytest.fixture(autouse=True)
def _recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(template("demo"))


def details(status: JobStatus, code: int | None = None, **more: Any) -> JobDetails:
    return JobDetails(
        type="SUBMISSION", submission_id="id", status=status, entrypoint="", driver_exit_code=code, **more
    )


def test_the_exit_code_is_the_runs_own_where_its_driver_told_it() -> None:
    for status, driver, code, says in (
        (JobStatus.SUCCEEDED, 0, 0, ""),
        (JobStatus.FAILED, 2, 2, ""),
        (JobStatus.FAILED, -9, 130, "goes on without it"),
        (JobStatus.FAILED, 137, 130, "signal 9"),
        (JobStatus.FAILED, None, 4, "could not be run"),
        (JobStatus.STOPPED, None, 130, "asked to end"),
    ):
        told, words = jobs.outcome(details(status, driver))
        assert (told, bool(words)) == (code, bool(says)) and says in words


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


def test_a_server_that_stops_answering_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ASK_S", 0.02)
    monkeypatch.setattr(jobs, "LOST_S", 0.1)
    said: list[str] = []
    with pytest.raises(ConnectionError, match="has gone"):
        jobs.follow(Frozen(questions_answered=3), "id", said.append)  # type: ignore[arg-type]
    assert said == ["one\n"]


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back_and_json_keeps_stdout_for_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server([], interrupted=True)
    monkeypatch.setattr(jobs, "connect", lambda _: server)
    monkeypatch.setattr(jobs, "send", lambda *_: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts behind
    try:
        result = invoke(*arguments("http://h:8265"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert re.search(r"ray job logs --follow --address http://h:8265 diloco-demo-\S+", result.stderr)
    assert "ray job stop --address http://h:8265" in result.stderr
    assert "one\ntwo\nthree\n" in result.stdout
    server = Server([])
    result = invoke(*arguments("http://h:8265"), "--json")
    record = json.loads(result.stdout)
    assert (record["run"], record["run_dir"], record["status"]) == ("demo", SHARED, "SUCCEEDED")
    assert (result.exit_code, record["exit_code"], record["driver_exit_code"]) == (0, 0, 0)
    assert "three" in result.stderr
    assert json.loads(invoke(*arguments("http://h:8265"), "--json", "--no-wait").stdout)["status"] == "PENDING"
