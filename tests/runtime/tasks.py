"""A task that fails, so that the training loop of a living process ends by an exception."""

import os
from pathlib import Path
from typing import Any

from learners.config import DataConfig
from learners.training.models.causal_lm import CausalLM


class FailsOnce(CausalLM):
    """The learner that takes sample `fail_at` first raises; the file `flag` remembers that it has happened."""

    def __init__(self, data: DataConfig, seed: int, flag: str, fail_at: int, **model: Any) -> None:
        super().__init__(data, seed, **model)
        self._flag, self._fail_at = Path(flag), fail_at

    def batch(self, start: int, count: int) -> Any:
        if start <= self._fail_at < start + count:
            try:
                os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise ArithmeticError("this sample cannot be learned")
        return super().batch(start, count)
