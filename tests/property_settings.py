"""How many examples the property tests take: all of them in `make test-all`, a fifth in `make test`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SMALL = "small"  # the profile of `make test`
FEWEST = 4


def examples(count: int, **more: Any) -> settings:
    """Settings of one test with so many examples; `more` as in hypothesis.settings."""
    small = settings.get_current_profile_name() == SMALL
    return settings(max_examples=max(FEWEST, count // 5) if small else count, **more)
