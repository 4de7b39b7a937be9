"""What a plan recommends, tried: the overrides, the command that plans them, and what they come to."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.recipe.problems import InputError

if TYPE_CHECKING:
    from orchestrator.planner.plan import Plan


@dataclass(frozen=True)
class Trial:
    """`plan` is None where it was not made, or cannot be: `refusal` says why."""

    command: str
    untried: tuple[str, ...]  # letters that are recommended to change, and are no setting of [sync]
    plan: Plan | None
    refusal: str


def trial(made: Plan, words: Sequence[str], plan_with: Callable[[list[str]], Plan] | None) -> Trial | None:
    """None where nothing of [sync] is to change. `words`: of the command; `plan_with`: None: it is not to be tried."""
    advised = [one for one in made.recommendations if one.changes]
    changed = [f"{one.field}={one.advised}" for one in advised if one.field.startswith("sync.")]
    if not changed:
        return None
    command = shlex.join([*words, *(word for item in changed for word in ("--set", item))])
    untried = tuple(one.letter for one in advised if not one.field.startswith("sync."))
    try:
        return Trial(command, untried, plan_with(changed) if plan_with is not None else None, "")
    except InputError as error:
        return Trial(command, untried, None, "; ".join(f"{each.field} {each.message}" for each in error.problems))


def as_json(tried: Trial | None) -> dict[str, Any]:
    """For the plan's JSON; null where there is nothing to try."""
    if tried is None:
        return {"trial": None, "advised": None}
    advised: dict[str, Any] | None = {"refused": tried.refusal} if tried.refusal else None
    if tried.plan is not None:
        foreseen = tried.plan.forecast
        advised = {"limits": len(tried.plan.limits), "forecast": foreseen and asdict(foreseen)}
    return {"trial": tried.command, "advised": advised}


def words(options: Mapping[str, Any], repeated: Mapping[str, Sequence[str]]) -> list[str]:
    """Options as they were given, for a command line; what is None was not."""
    once = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return [*once, *(word for name, values in repeated.items() for value in values for word in (name, value))]
