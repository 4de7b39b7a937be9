"""Trials as two Markdown tables; each number is the median of its trials, least and greatest beside it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.torchft.trial import AFTER_S, COORDINATOR, LEARNER, Ended, Trial, Watched

DASH = "-"


def read(rows: Path) -> list[Trial]:
    """The trials of a file, a JSON line each."""
    records = [json.loads(line) for line in rows.read_text().splitlines()]
    return [_trial(record) for record in records]


def tables(trials: Iterable[Trial]) -> str:
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.system, trial.killed), []).append(trial)
    survivors = [_survivor(name, group) for (name, killed), group in groups.items() if killed == LEARNER]
    coordinators = [_coordinator(*key, group) for key, group in groups.items() if key[1] != LEARNER]
    return "\n\n".join(
        "\n".join(table)
        for table in (
            [
                "| one learner killed | trials | step, median | longest gap before | longest gap of the survivor "
                "after | ratio | next commit | longest gap of commits before | killed one takes part again |",
                "| --- |" + " ---: |" * 8,
                *survivors,
            ],
            [
                "| coordinator killed | and | trials | what ended, exit code | when | longest gap before | "
                f"longest gap after | next commit | commits in {AFTER_S[COORDINATOR]:g} s |",
                "| --- | --- |" + " ---: |" * 7,
                *coordinators,
            ],
        )
        if len(table) > 2
    )


def _survivor(name: str, group: list[Trial]) -> str:
    cells = [
        name,
        str(len(group)),
        _spread(group, lambda t: _worst(t).before_gap_s_median, 3),
        _spread(group, lambda t: _worst(t).before_gap_s_max),
        _spread(group, lambda t: _worst(t).after_gap_s_max) + _still_open(group),
        _spread(group, lambda t: _worst(t).ratio, 1, "x"),
        _spread(group, lambda t: t.next_commit_s),
        _spread(group, lambda t: t.before_commit_gap_s_max),
        _spread(group, lambda t: t.back_s, 1),
    ]
    return f"| {' | '.join(cells)} |"


def _coordinator(name: str, killed: str, group: list[Trial]) -> str:
    whole = [trial for trial in group if not trial.ended]
    cells = [
        name,
        killed.removeprefix(COORDINATOR).removeprefix(", ") or DASH,
        str(len(group)),
        "; ".join(sorted({_ends(trial) for trial in group})),
        _spread(group, lambda t: max((end.after_s for end in t.ended.values()), default=None)),
        _spread(group, lambda t: _worst(t).before_gap_s_max),
        _spread(whole, lambda t: _worst(t).after_gap_s_max) + _still_open(whole),
        _spread(group, lambda t: t.next_commit_s),
        _spread(group, lambda t: t.commits, 0, ""),
    ]
    return f"| {' | '.join(cells)} |"


def _ends(trial: Trial) -> str:
    codes = sorted({end.code for end in trial.ended.values()})
    return f"{', '.join(sorted(trial.ended))}: {', '.join(map(str, codes))}" if trial.ended else "none"


def _worst(trial: Trial) -> Watched:
    """Of the learners that were not killed, the one with the longest gap afterwards."""
    return max(trial.learners.values(), key=lambda watched: watched.after_gap_s_max)


def _still_open(group: list[Trial]) -> str:
    count = sum(_worst(trial).open for trial in group)
    return f", not over in {count}" if count else ""


def _spread(group: list[Trial], value: Callable[[Trial], float | None], digits: int = 2, unit: str = " s") -> str:
    values = [found for trial in group if (found := value(trial)) is not None]
    if not values:
        return DASH
    middle, least, greatest = (f"{x:.{digits}f}" for x in (statistics.median(values), min(values), max(values)))
    missing = f", never in {len(group) - len(values)}" if len(values) < len(group) else ""
    return f"{middle}{unit} ({least} to {greatest}{missing})" if least != greatest or missing else f"{middle}{unit}"


def _trial(record: dict[str, Any]) -> Trial:
    learners = {name: Watched(**watched) for name, watched in record["learners"].items()}
    ended = {name: Ended(**end) for name, end in record["ended"].items()}
    return Trial(**record | {"learners": learners, "ended": ended})
