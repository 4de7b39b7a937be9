"""A rule of the user's own that passes its trial, and fails on the progress of a run."""

from __future__ import annotations

import pytest

from outer.protocol.facts import Committed, SyncerStarted
from outer.weights import Progress

pytestmark = [pytest.mark.runtime, pytest.mark.full]


def little(progress: Progress) -> float:
    """No rule: it knows nothing of progress of a middle size."""
    if 100 < progress.tokens < 4000:
        raise LookupError(f"no row for {progress.tokens:.0f} tokens")
    return 1.0


def test_a_weight_rule_that_fails_ends_the_run_and_is_named_with_the_fix(run):
    ended = run("own-weights", sync={"weights": f"{__name__}:little"})
    assert ended.summary["state"] == "failed"
    said = ended.summary["reason"]
    assert said.startswith(f"sync.weights: {__name__}:little fails: LookupError: no row for ")
    assert said.endswith("make it return a finite number above 0 for any progress, and resume the run")
    assert len(ended.facts(SyncerStarted)) == 1, "no epoch tries again"
    assert len(ended.facts(Committed)) < 8
