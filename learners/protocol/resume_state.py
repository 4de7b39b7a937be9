"""The learner machine's state at a step boundary, as plain values for a checkpoint.

learners/checkpoint_writer.py stores it beside the trainer's arrays.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResumeBase:
    """The base of one fragment, and the answered reads since its adoption."""

    version: int | None
    since: tuple[int, int]  # step, tokens processed by then
    asked: tuple[int, int, int]  # epoch, syncer step and attempt of the newest answered read
    reads: list[tuple[int, int]]  # its answers: step, tokens processed by then


@dataclass(frozen=True)
class ResumeState:
    """One incarnation between two steps."""

    step: int
    processed: int  # tokens
    loss: float | None
    reports: int
    syncer_step: int
    progress: float
    bases: list[ResumeBase]  # by fragment
    newest_span: int
    spans: list[tuple[int, int, int]]  # (span, start, stop), in the order of use
    used: int  # used samples of the first span
