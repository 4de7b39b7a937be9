"""How far a mean over seeds may be off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

CONFIDENCE = 0.95


def half_width(samples: Sequence[float]) -> float:
    """Half of Student's interval for the mean of two or more independent samples."""
    t = float(stdtrit(len(samples) - 1, (1.0 + CONFIDENCE) / 2))
    return t * statistics.stdev(samples) / math.sqrt(len(samples))
