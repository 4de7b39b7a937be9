"""A cluster's job server over HTTP, every request with a deadline: submit, follow.

Raises ConnectionError, with the fix, where the server does not answer or does not know us.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from orchestrator.cli.errors import FAILED, INTERRUPTED, OK
from orchestrator.cli.submission import CPUS, Submission, packed, runtime_env
from orchestrator.recipe.problems import InputError, Problem

KNOCK_S, ANSWER_S = 5.0, 60.0  # to connect; to answer, an upload included
POLL_S = 0.5
PENDING_S = 30.0  # until it is said that a job has not started
LOST_S = 60.0  # without an answer while following
AGENT_S = 60.0  # for a job agent to come up
NO_AGENT = "No available agent"
# Ray's client prefers these to the address that it is given.
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


class Jobs(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client, with a deadline for each request."""

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", (KNOCK_S, ANSWER_S))
        response: requests.Response = super()._do_request(method, endpoint, **kwargs)
        return response


def connect(address: str) -> Jobs:
    """The job server at http://HOST:PORT."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)
    kept = {name: os.environ.pop(name) for name in ADDRESSES if name in os.environ}
    try:
        with reachable(address):
            return Jobs(address, headers=_authorization())
    finally:
        os.environ.update(kept)


@contextlib.contextmanager
def reachable(address: str) -> Iterator[None]:
    """Turn what goes wrong on the way to the server into ConnectionError, in words."""
    try:
        yield
    except AuthenticationError as error:
        said = "it refuses this token" if "authentication failed" in str(error).lower() else "it asks for a token"
        raise ConnectionError(
            f"the job server at {address}: {said}; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, the file "
            "being the cluster's (mode 0600)"
        ) from error
    except RuntimeError as error:  # of Ray's client, with the server's words
        raise ConnectionError(f"the job server at {address}: {error}") from error
    except (requests.exceptions.RequestException, ConnectionError, KeyError) as error:
        raise ConnectionError(
            f"no job server answers at {address}: {type(error).__name__}; give the address of Ray's dashboard, "
            "http://HOST:8265, and check that it listens on more than loopback (ray start --dashboard-host)"
        ) from error


def _authorization() -> dict[str, str]:
    """The token that Ray's settings name; Ray itself sends one only where RAY_AUTH_MODE is set."""
    mode, token, path = (os.environ.get(f"RAY_AUTH_{name}") for name in ("MODE", "TOKEN", "TOKEN_PATH"))
    if mode == "disabled":
        return {}
    if not token and (path or mode == "token"):
        file = Path(path) if path else Path.home() / ".ray" / "auth_token"
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            fix = "name the cluster's token file, or unset RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH if it has none"
            raise InputError([Problem("RAY_AUTH_TOKEN_PATH", str(file), f"cannot be read: {error}", fix)]) from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def send(client: Jobs, submission: Submission, say: Callable[[str], None]) -> None:
    """Upload the folder and start the job. Raises InputError for a folder that Ray does not take.

    A cluster whose job agents are not up yet is waited for; `say` is told.
    """
    address, give_up_at = client.get_address(), time.monotonic() + AGENT_S
    with packed(submission.folder) as folder, reachable(address):
        request = {
            "entrypoint": submission.entrypoint,
            "submission_id": submission.submission_id,
            "runtime_env": runtime_env(folder),
            "metadata": {"job_name": submission.metadata["run"], **submission.metadata},
            "entrypoint_num_cpus": CPUS,
            "entrypoint_label_selector": dict(submission.control) or None,
        }
        told = False
        try:
            while True:
                try:
                    client.submit_job(**request)
                    return
                except RuntimeError as error:  # the server's answer
                    if NO_AGENT not in str(error) or time.monotonic() >= give_up_at:
                        raise
                if not told:
                    say(f"the cluster has no job agent yet; asking again for up to {AGENT_S:.0f} s")
                told = True
                time.sleep(POLL_S)
        except requests.exceptions.RequestException:
            raise
        except ValueError as error:  # more than Ray uploads (512 MiB)
            fix = "start from a smaller folder, or name what is not needed in a .rayignore there"
            raise InputError([Problem("--working-dir", str(submission.folder), str(error), fix)]) from error


def follow(client: Jobs, submission_id: str, say: Callable[[str], None]) -> JobDetails:
    """Hand on what the job prints, from its beginning, until it ends. Raises ConnectionError after a minute's silence.

    Interrupted, it leaves the job going.
    """
    answered_at, said = time.monotonic(), 0  # said: characters
    explain_at = answered_at + PENDING_S
    while True:
        try:
            job = client.get_job_info(submission_id)
            if job.status != JobStatus.PENDING:
                text = client.get_job_logs(submission_id)  # whole: a run prints a line in some seconds
                if len(text) > said:
                    say(text[said:])
                    said = len(text)
            elif time.monotonic() > explain_at:
                explain_at = float("inf")
                waits_for = f"{CPUS} CPU on a node with the labels of run.control"
                say(f"not started after {PENDING_S:.0f} s; it waits for {waits_for}\n")
            if job.status.is_terminal():
                return job
            answered_at = time.monotonic()
        except (requests.exceptions.RequestException, RuntimeError, ConnectionError) as error:
            if time.monotonic() - answered_at > LOST_S:
                raise ConnectionError(f"the job server at {client.get_address()} has gone: {error}") from error
        time.sleep(POLL_S)


def outcome(job: JobDetails) -> tuple[int, str]:
    """Exit code of a job that has ended, and what is to be said of it.

    A driver that left by itself gives the run's own code. One that was ended from outside tells nothing of the run.
    """
    code = job.driver_exit_code
    if job.status == JobStatus.STOPPED:
        return INTERRUPTED, "the job was stopped: the run has been asked to end, and does so by itself"
    if job.status == JobStatus.SUCCEEDED:
        return OK, ""
    if code is None:
        return FAILED, f"the job could not be run: {job.message}"
    if code < 0 or code > INTERRUPTED:
        number = -code if code < 0 else code - 128
        return INTERRUPTED, f"the job's driver was ended by signal {number}: a run that had begun goes on without it"
    return code, ""
