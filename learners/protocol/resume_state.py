"""Where a learner stands at a boundary, as plain values: what a checkpoint keeps of the machine beside its arrays.

Knows what the machine's parts hold, and nothing of files; the trainer's numbers are the shell's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResumeBase:
    """What is held of one fragment, and which reads of it were answered since."""

    version: int | None
    since: tuple[int, int]  # step, tokens processed by then
    asked: tuple[int, int, int]  # epoch, syncer step and attempt of the newest read that was answered
    reads: list[tuple[int, int]]  # the answers to that: step, tokens processed by then


@dataclass(frozen=True)
class ResumeState:
    """One incarnation, between two steps."""

    step: int
    processed: int  # tokens
    loss: float | None
    reports: int
    syncer_step: int
    progress: float
    bases: list[ResumeBase]  # by fragment
    newest_span: int
    spans: list[tuple[int, int, int]]  # (span, start, stop), in the order in which they are used up
    used: int  # samples of the first
