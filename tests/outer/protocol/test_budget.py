"""When a run ends: at so many tokens, or after so many syncer steps."""

from __future__ import annotations

import pytest

from outer.protocol.syncer import Budget


@pytest.mark.parametrize(
    ("budget", "tokens", "syncer_step", "share", "over"),
    [
        (Budget(400, None), 0, 9, 0.0, ""),
        (Budget(400, None), 100, 9, 0.25, ""),
        (Budget(400, None), 399, 9, 0.9975, ""),
        (Budget(400, None), 400, 0, 1.0, "400 tokens are committed"),
        (Budget(400, None), 1_500, 0, 1.0, "1,500 tokens are committed"),
        (Budget(None, 8), 900, 0, 0.0, ""),
        (Budget(None, 8), 0, 7, 0.875, ""),
        (Budget(None, 8), 0, 8, 1.0, "syncer step 8 is reached"),
        (Budget(None, 8), 0, 9, 1.0, "syncer step 9 is reached"),
        (Budget(400, 8), 100, 8, 0.25, "syncer step 8 is reached"),
        (Budget(400, 8), 400, 8, 1.0, "400 tokens are committed"),
    ],
)
def test_how_much_of_it_is_committed_and_why_it_is_over(
    budget: Budget, tokens: int, syncer_step: int, share: float, over: str
) -> None:
    assert budget.progress(tokens, syncer_step) == share
    assert budget.reached(tokens, syncer_step) == over
