"""Weights: what each contribution to a merge weighs, before the weights are divided by their sum (paper section 3).

A weight is a function of `Progress` that returns a finite number above 0. It must depend on nothing else. A user's own
goes by its import path, `package.module:function`, wherever a name goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from outer.imports import function_at


class Progress(NamedTuple):
    """A learner's progress on a fragment since its base; of a late one at most a round's steps and tokens."""

    tokens: float  # at least 1
    steps: float  # at least 1
    age: int = 0  # rounds that the base is behind, at most sync.base_window


Weight = Callable[[Progress], float]


class BadWeight(ValueError):
    """A rule failed on the progress of a run. It would do so again, in every epoch of the syncer."""


def paper(progress: Progress) -> float:
    """tokens^2 / steps: the more tokens, and the larger the steps' batches, the more (paper section 3)."""
    return progress.tokens * progress.tokens / progress.steps / (1 + progress.age)


def tokens(progress: Progress) -> float:
    """Tokens alone."""
    return progress.tokens / (1 + progress.age)


def equal(progress: Progress) -> float:
    """All alike."""
    return 1 / (1 + progress.age)


# The rules in the box divide by 1 + age: late work counts the less the older its base is.
WEIGHTS: Mapping[str, Weight] = {"paper": paper, "tokens": tokens, "equal": equal}


def named(name: str) -> Weight:
    """The weight of this name or import path. Raises ValueError, with what is wrong and the fix."""
    weight: Weight = function_at(name, WEIGHTS, "weight")
    return weight


def weigh(weight: Weight, progress: Progress) -> float:
    """What the rule says, above 0. Raises BadWeight, which names the rule, the progress and the fix."""
    path = f"{getattr(weight, '__module__', '')}:{getattr(weight, '__qualname__', weight)}"
    try:
        found, wrong = float(weight(progress)), ""
    except Exception as error:  # whatever a user's function raises
        found, wrong = math.nan, f"fails: {type(error).__name__}: {error}"
    if not 0.0 < found < math.inf:
        raise BadWeight(
            f"sync.weights: {path} {wrong or f'gives {found}'} for {progress}; "
            "make it return a finite number above 0 for any progress, and resume the run"
        )
    return found


def check(name: str) -> None:
    """Try a weight on little and much progress. Raises ValueError, with what is wrong, for one that cannot be used."""
    weight = named(name)
    for progress in (Progress(*each) for each in ((1, 1), (10**12, 1), (10**12, 10**6), (4096, 4, 3), (4096, 4, 1000))):
        try:
            first, again = float(weight(progress)), float(weight(progress))
        except Exception as error:  # whatever a user's function raises
            raise ValueError(f"{name!r} fails for {progress}: {type(error).__name__}: {error}") from error
        if not 0.0 < first < math.inf:
            raise ValueError(f"{name!r} gives {first} for {progress}; return a finite number above 0")
        if first != again:
            raise ValueError(f"{name!r} gives {first}, then {again} for {progress}; let it depend on nothing else")
