"""Following a job: what it prints, whether its server is there, and what its end means."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
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
    """A job that prints a line between two questions for its log; some of them fail, `None`."""

    lines = ("one\n", "two\n", "three\n")

    def __init__(self, answers: Sequence[int | None] = (3,), interrupted: bool = False) -> None:
        self._answers, self._interrupted, self._ended = list(answers), interrupted, False

    def get_address(self) -> str:
        return "http://h:8265"

    def get_job_info(self, _: str) -> JobDetails:
        return details(JobStatus.SUCCEEDED, 0) if self._ended else details(JobStatus.RUNNING)

    def get_job_logs(self, _: str) -> str:
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)
        lines = self._answers.pop(0) if self._answers else 3
        if lines is None:
            raise RuntimeError("Request failed with status code 500")
        self._ended = lines == 3
        return "".join(self.lines[:lines])


def test_what_a_job_prints_is_printed_once_however_often_the_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    said: list[str] = []
    ended = jobs.follow(Server([1, None, 1, 2, None]), "id", said.append)  # type: ignore[arg-type]
    assert said == ["one\n", "two\n", "three\n"]
    assert ended.status == JobStatus.SUCCEEDED


def test_a_job_that_does_not_start_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    monkeypatch.setattr(jobs, "PENDING_S", -1.0)
    pending = [details(JobStatus.PENDING)] * 3

    class Waiting(Server):
        def get_job_info(self, _: str) -> JobDetails:
            return pending.pop() if pending else super().get_job_info(_)

    said: list[str] = []
    jobs.follow(Waiting(), "id", said.append)  # type: ignore[arg-type]
    assert len([text for text in said if "run.control" in text]) == 1


@pytest.mark.parametrize("asked", ["get_job_info", "get_job_logs"])
def test_a_server_that_stops_answering_is_given_up_and_a_silent_job_is_not(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    clock = [0.0]
    pauses = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(jobs, "time", pauses)
    silent_s = 10 * jobs.LOST_S
    said: list[str] = []

    class Frozen(Server):
        """Its job prints a line, then nothing for long; then nobody answers this question."""

    def answer(self: Frozen, name: str) -> Any:
        if clock[0] > silent_s and asked == "get_job_info":
            raise requests.exceptions.ReadTimeout("frozen")
        return Server.get_job_info(self, name)

    def log(self: Frozen, name: str) -> str:
        if clock[0] > silent_s:
            raise requests.exceptions.ReadTimeout("frozen")
        return "one\n"

    monkeypatch.setattr(Frozen, "get_job_info", answer)
    monkeypatch.setattr(Frozen, "get_job_logs", log)
    with pytest.raises(ConnectionError, match="has gone"):
        jobs.follow(Frozen(), "id", said.append)  # type: ignore[arg-type]
    assert said == ["one\n"] and silent_s + jobs.LOST_S < clock[0] < silent_s + 2 * jobs.LOST_S


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back_and_json_keeps_stdout_for_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(interrupted=True)
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
    server = Server()
    result = invoke(*arguments("http://h:8265"), "--json")
    record = json.loads(result.stdout)
    assert (record["run"], record["run_folder"], record["status"]) == ("demo", SHARED, "SUCCEEDED")
    assert (result.exit_code, record["exit_code"], record["driver_exit_code"]) == (0, 0, 0)
    assert "three" in result.stderr
    assert json.loads(invoke(*arguments("http://h:8265"), "--json", "--no-wait").stdout)["status"] == "PENDING"
