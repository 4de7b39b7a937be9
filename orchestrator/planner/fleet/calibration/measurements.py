"""What one real run has measured: its durations as distributions, its faults, and how well it did.

A value to keep, as JSON, and to simulate other runs with. How it is measured is in `measuring`; knows no log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.eventlog.decode import build
from orchestrator.planner.fleet.calibration.distribution import EmpiricalDistribution
from orchestrator.recipe.problems import InputError, Problem

FORM = 1  # of the file; another one is refused
RESTART = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")


@dataclass(frozen=True)
class Pace:
    """How fast the learners of one pool step."""

    step_s: EmpiricalDistribution  # no waiting, no faults, no first steps
    slowdown: float
    batch_size: int


@dataclass(frozen=True)
class ObservedFault:
    """A fault of the run."""

    kind: str  # as in [chaos]; a death that no fault explains is a kill
    target: str  # a learner, or `syncer`
    at_s: float  # from the beginning of the first learner step
    duration_s: float  # 0: it does not heal by itself
    delay_s: float
    injected: bool


@dataclass(frozen=True)
class Measured:
    """How well the run did, by the formulas of its summary. Shares are of 1; None: the log does not tell."""

    wall_s: float
    goodput_time: float
    availability: float
    uptime: float  # share of the window in which some learner held a lease that its steps had earned
    participation: float  # of the configured
    alive_participation: float | None  # of the live
    commits_per_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Calibration:
    """Durations are seconds. An empty distribution: it never happened."""

    run: str
    config_hash: str
    work: str  # hash of what a step computes: task, model and length of a sample
    learners: int
    pools: dict[str, Pace]
    waits: dict[str, EmpiricalDistribution]  # of steps, by what they waited for
    quorum_s: EmpiricalDistribution  # opening to the K-th report
    grace_s: EmpiricalDistribution  # granted after the quorum
    sync_s: EmpiricalDistribution  # decision to merged: the reads, and the merge
    adopted_s: EmpiricalDistribution  # merged to adopted: the journal's write and the wait for a boundary included
    version_s: float | None  # of that, until the version is there, the write included: what fits most adoptions
    detect: dict[str, EmpiricalDistribution]  # from a fault to its first sign, by kind
    restart: dict[str, EmpiricalDistribution]  # of a killed learner, by phase: RESTART
    abreast: float | None  # so many starts at once go on at full speed; None: no two ever met
    alone: dict[
        str, EmpiricalDistribution
    ]  # of a restart, what start, import and compile take where no other is under way
    first_step_s: EmpiricalDistribution  # of every incarnation
    outage: dict[str, EmpiricalDistribution]  # of the syncer: detect, start, first_contribution
    strikes: tuple[ObservedFault, ...]
    measured: Measured

    def as_json(self) -> dict[str, Any]:
        """Plain values; distributions also say their median and 90th percentile, which reading ignores."""
        return {"form": FORM, **_told(asdict(self))}

    @staticmethod
    def from_json(record: Any) -> Calibration:
        """Raises ValueError with the reason for anything that `as_json` did not make."""
        if not isinstance(record, dict) or record.get("form") != FORM:
            raise ValueError(f"no calibration of form {FORM}")
        try:
            made: Calibration = build(
                Calibration, {key: _bare(value) for key, value in record.items() if key != "form"}
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no calibration: {error}") from error
        return made


def _told(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"count", "seconds"}:
        return {**EmpiricalDistribution(**value).summary(), **value}
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    return [_told(item) for item in value] if isinstance(value, (list, tuple)) else value


def _bare(value: Any) -> Any:
    if isinstance(value, dict) and {"count", "seconds"} <= value.keys():
        return {"count": value["count"], "seconds": value["seconds"]}
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def read(path: Path) -> Calibration:
    """A saved calibration. Raises InputError for a file that is none."""
    try:
        return Calibration.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        message = f"cannot be read as a calibration: {error}"
        fix = "give a finished run's folder, or a file that `diloco plan --calibrate RUN_DIR --save FILE` wrote"
        raise InputError([Problem("--calibrate", str(path), message, fix)]) from error
