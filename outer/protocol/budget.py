"""When the run ends. Knows nothing of how it gets there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """When the run ends: at so many committed tokens, or after so many syncer steps."""

    tokens: int | None
    syncer_steps: int | None

    def progress(self, tokens: int, syncer_step: int) -> float:
        """Share of it that is committed, 0 to 1."""
        if self.tokens is not None:
            return min(1.0, tokens / self.tokens)
        assert self.syncer_steps is not None
        return min(1.0, syncer_step / self.syncer_steps)

    def reached(self, tokens: int, syncer_step: int) -> str:
        """Why the run is over, with so much committed; empty while it is not."""
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens:,} tokens are committed"
        if self.syncer_steps is not None and syncer_step >= self.syncer_steps:
            return f"syncer step {syncer_step} is reached"
        return ""
