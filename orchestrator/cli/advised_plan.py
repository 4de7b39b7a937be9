"""The plan that a plan's own recommendations lead to, and the command that makes it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.planner.forecast import as_json as forecast_json
from orchestrator.recipe.problems import InputError

if TYPE_CHECKING:
    from orchestrator.planner.plan import Plan


@dataclass(frozen=True)
class AdvisedPlan:
    """`plan` is None where it was not made, or cannot be: `refusal` says why."""

    command: str
    untried: tuple[str, ...]  # letters that are recommended to change, and are no setting of [sync]
    plan: Plan | None
    refusal: str


def advised_plan(made: Plan, words: Sequence[str], plan_with: Callable[[list[str]], Plan] | None) -> AdvisedPlan | None:
    """None if no setting of [sync] is to change. `words`: the command; `plan_with`: makes the plan, None makes none."""
    advised = [one for one in made.recommendations if one.changes]
    changed = [f"{one.field}={one.advised}" for one in advised if one.field.startswith("sync.")]
    if not changed:
        return None
    command = shlex.join([*words, *(word for item in changed for word in ("--set", item))])
    untried = tuple(one.letter for one in advised if not one.field.startswith("sync."))
    try:
        return AdvisedPlan(command, untried, plan_with(changed) if plan_with is not None else None, "")
    except InputError as error:
        return AdvisedPlan(command, untried, None, "; ".join(f"{each.field} {each.message}" for each in error.problems))


def as_json(tried: AdvisedPlan | None) -> dict[str, Any]:
    """For the plan's JSON; null where there is nothing to try."""
    if tried is None:
        return {"trial": None, "advised": None}
    advised: dict[str, Any] | None = {"refused": tried.refusal} if tried.refusal else None
    if tried.plan is not None:
        advised = {"limits": len(tried.plan.limits), "forecast": forecast_json(tried.plan.forecast)}
    return {"trial": tried.command, "advised": advised}


def words(options: Mapping[str, Any], repeated: Mapping[str, Sequence[str]]) -> list[str]:
    """Options as they were given, for a command line; what is None was not."""
    once = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return [*once, *(word for name, values in repeated.items() for value in values for word in (name, value))]
