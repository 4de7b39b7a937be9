"""The simulator of chaos, as `diloco tape --profile` drives it. The composition root hands it to that command."""

from __future__ import annotations

from chaos.simulation.profile import PROFILES
from orchestrator.cli.tape import Hostile, Tape, TapeUnsound, counted
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem, nearest


def problems(recipe: Recipe, profile: str) -> list[Problem]:
    """Why this recipe cannot be simulated with this profile."""
    from chaos.simulation.recipes import problems as of_recipe

    return [*unknown_profile(profile), *of_recipe(recipe)]


def unknown_profile(profile: str) -> list[Problem]:
    if profile in PROFILES:
        return []
    near = nearest(profile, PROFILES)
    fix = f'did you mean "{near}"?' if near else "choose one of them"
    return [Problem("--profile", profile, f"allowed are {', '.join(PROFILES)}", fix)]


def record(recipe: Recipe, seed: int, profile: str, step_s: float, startup_s: float) -> Tape:
    """Simulate a resolved recipe. Raises TapeUnsound."""
    from chaos.simulation.recipes import options
    from chaos.simulation.tape import Broken, record
    from orchestrator.recipe.tasks import build_task, host_only

    task = build_task(recipe)
    with host_only():
        from learners.training.tree import deal
    dealt = deal(task, recipe.sync)
    wanted = options(recipe, dealt, task.tokens, seed=seed, profile=profile, step_s=step_s, startup_s=startup_s)
    try:
        made = record(recipe, wanted)
    except Broken as error:
        raise TapeUnsound(str(error)) from error
    fired = made.fault_counts if wanted.faults else {}
    return Tape(
        made.events,
        made.verdicts,
        made.virtual_s,
        f"and profile {profile}",
        {"profile": profile, "fired": fired},
        [f"what all faults did: {counted(fired)}"] if fired else [],
    )


HOSTILE = Hostile(problems, record)
