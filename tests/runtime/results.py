"""The result of a run on real actors, and what has to hold of any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learners.protocol.facts import StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.recipe.config import SYNCER
from outer.protocol.facts import Committed
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
STOPPED = "the script is over"  # why a script stops its run


@dataclass(frozen=True)
class Result:
    summary: dict[str, Any]
    events: list[Event]
    folder: Path
    seed: int
    statuses: list[Mapping[str, Any]]  # in the order in which they were written

    def facts(self, kind: type[Any]) -> list[Any]:
        return [event.fact for event in self.events if isinstance(event.fact, kind)]

    def of(self, kind: type[Any]) -> list[Event]:
        return [event for event in self.events if isinstance(event.fact, kind)]

    def participants(self, after: float = float("-inf")) -> set[tuple[str, int]]:
        """(learner, incarnation) of everything merged after a moment."""
        commits = [event.fact for event in self.of(Committed) if event.at > after]
        return {(each.learner, each.incarnation) for commit in commits for each in commit.participants}

    @property
    def incarnations(self) -> set[tuple[str, int]]:
        """(learner, incarnation) of all that finished a step."""
        return {(event.writer, event.incarnation) for event in self.of(StepFinished)}

    @property
    def outages(self) -> list[dict[str, Any]]:
        """The summary's rows of faults of the syncer."""
        return [row for row in self.summary["faults"] if row["target"] == SYNCER]


def assert_kept(result: Result, state: str = "finished") -> None:
    """No check fails, the run came to the end that it should, and the accounts of tokens are exact.

    `state`: `finished` by its budget, or `stopped` by its script.
    """
    assert [check for check in result.summary["checks"] if check["status"] not in ("pass", "idle")] == []
    assert (result.summary["state"], result.summary["ok"]) == (state, state == "finished"), result.summary["reason"]
    assert state == "finished" or result.summary["reason"] == STOPPED
    tokens = result.summary["tokens"]
    assert tokens["processed"] == tokens["committed"] + tokens["in_flight"] + sum(tokens["discarded"].values())
    assert tokens["processed"] == sum(fact.tokens for fact in result.facts(StepFinished))
    assert tokens["in_flight"] == 0


def assert_bit_equal(folder: Path, *options: str) -> dict[str, Any]:
    """Another process computes every loss, state, contribution and commit again, and the final parameters.

    Returns what it says.
    """
    command = [sys.executable, "-m", "orchestrator", "replay", str(folder), "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["bit_equal"] is True and told["sealed"] is True
    assert told["equal"] == told["compared"]
    assert told["equal"]["final"] == 1 and told["equal"]["loss"] == told["steps"]
    return told
