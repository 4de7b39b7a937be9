"""Held-out evaluation as a Ray actor. Knows the syncer's parameters and the task; no learner, and no training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray

from learners.actor import LearnerSpec
from learners.training.device import fit


class EvaluatorActor:
    """Evaluates beside the run, in nobody's way. `spec` is a learner's: the same task, fragments and device."""

    def __init__(self, spec: LearnerSpec, outer: Any, sequences: int) -> None:
        self._spec, self._outer = spec, outer
        os.nice(10)  # where cores are shared, learners come first
        fit(spec.core, spec.accelerated)
        from learners.training.task import load
        from learners.training.trainer import Evaluator, deal

        self._task = load(spec.task, spec.data, spec.seed, dict(spec.model))
        self._fragments = deal(self._task, spec.sync)
        self._evaluator = Evaluator(self._task, self._fragments, sequences)
        self._sequences = sequences

    def __repr__(self) -> str:
        return self._spec.name

    def turn_to(self, outer: Any) -> None:
        """Another epoch of the syncer serves."""
        self._outer = outer

    def initial(self) -> tuple[int, float, int, str]:
        """As `current`, of the parameters that the run starts from."""
        from learners.training.trainer import initial_parameters

        return self._evaluate(
            0, initial_parameters(self._task, self._fragments, self._spec.seed, self._spec.warm_start)
        )

    def current(self) -> tuple[int, float, int, str]:
        """(syncer step, loss, tokens, the loss's unit) of an evaluation of the syncer's parameters now."""
        syncer_step, thetas, _ = ray.get(self._outer.snapshot.remote(), timeout=self._spec.sync.transfer_s)
        return self._evaluate(syncer_step, thetas)

    def _evaluate(self, syncer_step: int, thetas: Sequence[Any]) -> tuple[int, float, int, str]:
        from learners.training.task import loss_unit

        loss, tokens = self._evaluator.loss(thetas), self._task.tokens(self._sequences)
        return syncer_step, loss, tokens, loss_unit(self._task)

    def references(self) -> tuple[float, float] | None:
        """(bigram, trigram) tables' losses on the same samples, if the task can tell."""
        tables = getattr(self._task, "ngram_losses", None)
        return tables(self._sequences) if tables else None
