"""Who can contribute to a commit, which contributions count, and for how much (paper section 3).

Pure judgements of reports and counters; who was asked, and what has arrived, is the open step's to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outer.protocol.facts import Participant
from outer.protocol.messages import Contribution

if TYPE_CHECKING:
    from outer.protocol.members import Member


def has_progress(member: Member, fragment: int, version: int) -> bool:
    """Its last report shows this version as its base, and at least one step since."""
    assert member.report is not None
    counters = member.report.counters[fragment]
    return counters.base_version == version and counters.steps >= 1


def unusable(contribution: Contribution, fragment: int, version: int) -> str:
    """Why it cannot be merged into this version of the fragment; empty when it can."""
    if contribution.defect:
        return contribution.defect
    if contribution.fragment != fragment:
        return "wrong_fragment"
    counters = contribution.counters
    if counters.base_version != version:
        return "stale_base"
    plausible = counters.steps >= 1 and 1 <= counters.tokens <= contribution.processed
    if not plausible or counters.base_step + counters.steps != contribution.step:
        return "wrong_counters"
    return ""


def weigh(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """c_tokens^2 / c_steps of each, normalised."""
    raw = [c.counters.tokens * c.counters.tokens / c.counters.steps for c in contributions]
    total = sum(raw)
    return tuple(weight / total for weight in raw)


def participants(contributions: Sequence[Contribution], weights: Sequence[float]) -> tuple[Participant, ...]:
    """What the record of a commit says of each contribution."""
    return tuple(
        Participant(
            learner=contribution.learner,
            incarnation=contribution.incarnation,
            step=contribution.step,
            base_step=contribution.counters.base_step,
            steps=contribution.counters.steps,
            tokens=contribution.counters.tokens,
            weight=weight,
            digest=contribution.digest,
            processed=contribution.processed,
        )
        for contribution, weight in zip(contributions, weights, strict=True)
    )
