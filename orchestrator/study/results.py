"""The rows of a study, and the difference to another one over the seeds that both have."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import stdtrit  # type: ignore[import-untyped]

ROWS = "seed-*/study.json"


@dataclass(frozen=True)
class Difference:
    """Of two studies' final held-out losses, over paired seeds: the first minus the second."""

    seeds: tuple[int, ...]
    each: tuple[float, ...]
    mean: float
    half_width: float | None  # of Student's 95 % interval; None for one seed


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of finished seeds, by seed. Raises OSError, and ValueError for a file that holds no row."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(ROWS)]
    if any(not isinstance(row, dict) or not {"seed", "eval_loss"} <= row.keys() for row in found):
        raise ValueError("a study.json there holds no row")
    return sorted(found, key=lambda row: int(row["seed"]))


def difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> Difference | None:
    """None where no seed is in both with a finite loss."""
    before = {row["seed"]: row["eval_loss"] for row in theirs if row["eval_loss"] is not None}
    pairs = [(row["seed"], row["eval_loss"] - before[row["seed"]]) for row in ours if _both(row, before)]
    if not pairs:
        return None
    seeds, each = zip(*pairs, strict=True)
    return Difference(seeds, each, statistics.fmean(each), half_width(each) if len(each) > 1 else None)


def _both(row: dict[str, Any], others: dict[int, float]) -> bool:
    return row["eval_loss"] is not None and row["seed"] in others


def spread(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and half of Student's 95 % interval, as far as so many losses have them."""
    mean = statistics.fmean(losses) if losses else None
    return mean, half_width(losses) if len(losses) > 1 else None


def half_width(samples: Sequence[float]) -> float:
    """Half of Student's 95 % interval for the mean of two or more independent samples."""
    return float(stdtrit(len(samples) - 1, 0.975)) * statistics.stdev(samples) / math.sqrt(len(samples))
