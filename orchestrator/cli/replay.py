"""`diloco replay RUN`: compute a recorded run again and compare every digest. Needs no cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, apart, reported
from orchestrator.cli.options import AsJson, Run, Task
from orchestrator.cli.progress import Bars
from orchestrator.cli.recipes import import_from, permit
from orchestrator.eventlog.events import finite
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.tasks import host_only
from orchestrator.store.readers import RECIPE_FILE, located, recipe_of
from orchestrator.store.run_store import RunStore

if TYPE_CHECKING:
    from orchestrator.replay.incarnation import Key
    from orchestrator.replay.replayer import Replayer
    from orchestrator.replay.tape import Said

KINDS = ("loss", "state", "contribution", "commit", "final")  # what is compared, in the order of the report


def replay(
    run: Run = None,
    until: Annotated[int | None, typer.Option(min=1, metavar="STEP", help="The last syncer step to replay.")] = None,
    task: Task = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="FUNCTION", help="A rule of the run that is not built in: allows its code to run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute a recorded run again and compare it to the bit; exit code 5 if it differs, or was not fully recorded."""
    with reported(as_json):
        _replay(located(run), until, task, rule or [], as_json)


# What a replay takes for granted of a log.
PREMISES = (
    "log.readable", "log.chain", "log.seal", "log.recipe", "log.sequence", "durable.records", "versions.chain",
    "versions.adopted", "versions.clocks", "merges.once", "merges.weights", "merges.counters", "merges.current",
    "replayable.steps", "replayable.states",
)  # fmt: skip


def _sound(store: RunStore) -> tuple[Mapping[Key, Said], bool]:
    """A run's log, by writer, and whether it is sealed. Raises InputError where a check that a replay needs fails."""
    from orchestrator.analysis.folder import check_run
    from orchestrator.eventlog.reader import LogReader
    from orchestrator.replay.tape import said_in

    run_dir = str(store.root)
    try:
        found = {verdict.name: verdict for verdict in check_run(store.root)}
        said = said_in(LogReader(store.root).rest())
    except (OSError, ValueError) as error:
        fix = "restore the log; one of a later version needs that version"
        raise InputError([Problem("RUN", run_dir, f"its log cannot be read: {error}", fix)]) from error
    for verdict in map(found.__getitem__, PREMISES):
        if verdict.status == "violated":
            fix = f"restore the log and {RECIPE_FILE} as they were written; what else is wrong: diloco check {run_dir}"
            raise InputError([Problem("RUN", run_dir, f"cannot be replayed: {verdict.name}: {verdict.reason}", fix)])
    if not said:
        raise InputError([Problem("RUN", run_dir, "holds no log", "give the folder of a run that has begun")])
    whole = found["log.seal"].status == "pass"
    if not whole:
        typer.echo(f"{run_dir}: not sealed: it may have been cut", err=True)
    return said, whole


# ------------------------------------------------------------------ the numbers again


def _replay(store: RunStore, until: int | None, allowed: str | None, rules: list[str], as_json: bool) -> None:
    said, sealed = _sound(store)
    with host_only():  # accelerators are the processes' that repeat the learners
        from orchestrator.replay.replayer import play
    from orchestrator.replay.environment import needed
    from orchestrator.replay.incarnation import TapeError
    from orchestrator.replay.tape import tape_of

    recipe = recipe_of(store)
    permit(recipe.task, allowed)
    named = [each for each in (recipe.outer.merge, recipe.outer.optimizer) if ":" in each]
    for each in rules:
        if each not in named:
            permit(named[0] if named else recipe.outer.merge, each, "--rule")
    for each in named:
        permit(each, each if each in rules else None, "--rule")
    import_from(Path.cwd())  # as for a run
    try:
        tape = tape_of(said, until)
        if until is not None and not tape.commits:
            raise InputError([Problem("--until", until, "is before the first commit", "give a later syncer step")])
        with Bars() as bars, apart(True):  # whatever the task prints
            outcome = play(tape, recipe, needed(tape), partial(_show, bars, len(tape.commits)))
    except TapeError as error:
        fix = f"what else the log tells of this: diloco check {store.root}"
        raise InputError([Problem("RUN", str(store.root), f"cannot be replayed: {error}", fix)]) from error
    outcome |= {"name": recipe.name, "sealed": sealed}
    if as_json:
        typer.echo(json.dumps(finite(outcome), allow_nan=False))
    else:
        typer.echo("\n".join(_told(outcome)))
    if outcome["bit_equal"] is not True:
        raise typer.Exit(CHECK_FAILED)


def _told(outcome: Mapping[str, Any]) -> list[str]:
    name, equal = outcome["name"], outcome["bit_equal"]
    lines = [
        f"{name}: {outcome['commits']:,} commits up to syncer step {outcome['syncer_step']:,} replayed, "
        f"{outcome['steps']:,} steps in {outcome['seconds']:.1f} s by {outcome['processes']} processes"
    ]
    for kind in KINDS:
        computed, compared, same = (outcome[count].get(kind, 0) for count in ("computed", "compared", "equal"))
        words = f"{same:,} of {compared:,} equal" if compared else "not recorded" if computed else "none"
        lines.append(f"  {kind:15} {words}{f', {computed - compared:,} not recorded' * (0 < compared < computed)}")
    lines.append(f"  {'digest':15} {outcome['digest']}")
    verdict = "unknown: not all was recorded" if equal is None else "yes" if equal else "no"
    lines.append(f"  {'bit-equal':15} {verdict}")
    if equal is False:
        lines.append(f"  first difference: {differs(outcome['difference'])}")
        lines += [f"    perhaps because of {hint}" for hint in outcome["hints"]]
        if not outcome["hints"]:
            lines.append("    everything that was recorded of the learners' devices is the same here")
    return lines


def differs(difference: dict[str, Any]) -> str:
    """A difference in words."""
    who = f"{difference['learner']} {difference['incarnation']}" if difference["learner"] else ""
    step = "" if difference["step"] is None else f" after its step {difference['step']}"
    where = "" if difference["fragment"] is None else f", fragment {difference['fragment']}"
    what = {
        "loss": f"the loss of {who} in its step {difference['step']}",
        "state": f"the state that {who} started from",
        "contribution": f"the contribution of {who}{step}",
        "commit": "the commit itself, of equal contributions",
        "final": "the final parameters",
    }[difference["what"]]
    values = f"recorded {difference['recorded']}, found {difference['found']}"
    return f"syncer step {difference['syncer_step']}{where}: {what}: {values}"


def _show(bars: Bars, commits: int, replayer: Replayer) -> None:
    """The last of `replayer`'s news, with what differs first of all."""
    steps, seconds = replayer.tally.steps, max(replayer.seconds, 1e-9)
    words = f"{replayer.commits:,} of {commits:,} commits, {steps / seconds:,.0f} steps/s"
    if replayer.difference is not None:
        words = f"DIFFERS at {differs(asdict(replayer.difference))}"
    bars.show("replaying", replayer.commits, commits, words)
