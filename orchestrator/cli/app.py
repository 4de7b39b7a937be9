"""The `diloco` command: its subcommands, in the groups in which `--help` shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from orchestrator.cli import (
    check,
    check_task,
    checkpoint,
    compare,
    data,
    doctor,
    evaluate,
    export,
    init,
    log,
    metrics,
    plan,
    replay,
    report,
    run,
    sample,
    scale,
    simulate_goodput,
    status,
    study,
    submit,
    tape,
    track,
)
from orchestrator.cli.usage import Group, Root

RUN, WATCH, PLAN, PROVE, USE = (
    "Run",
    "Watch",
    "Plan, without training",
    "Prove",
    "Use the model",
)
COMMANDS: tuple[tuple[str, tuple[Callable[..., None], ...]], ...] = (
    (RUN, (init.init, run.run, submit.submit, scale.scale, status.stop, study.study, compare.compare)),
    (WATCH, (status.status, log.log, report.report, metrics.metrics, track.track)),
    (PLAN, (plan.plan, doctor.doctor, check_task.check_task)),
    (PROVE, (check.check, replay.replay, tape.tape)),
    (USE, (evaluate.evaluate, export.export, sample.sample)),
)


@dataclass(frozen=True)
class Wiring:
    """What the composition root hands in from the room above, for commands to find in their context."""

    starter: Callable[..., Any] | None  # starts chaos beside a run
    hostile: tape.Hostile | None  # simulates a recipe under faults
    faults: Callable[..., Any] | None = None  # (chaos, learners, seed): a plan's faults, and endless random ones


def build(
    extensions: Sequence[tuple[str, typer.Typer]] = (),
    starter: Callable[..., Any] | None = None,
    hostile: tape.Hostile | None = None,
    faults: Callable[..., Any] | None = None,
) -> typer.Typer:
    """The command line. `extensions` are named groups of further commands; the others as in Wiring."""
    app = typer.Typer(
        cls=Root,
        help="Decoupled DiLoCo: train one model on islands of compute that do not wait for each other.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(context: typer.Context) -> None:
        context.obj = Wiring(starter, hostile, faults)

    for panel, commands in COMMANDS:
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    simulate = typer.Typer(cls=Group, help="Simulate fleets of any size.", no_args_is_help=True)
    simulate.command("goodput")(simulate_goodput.goodput)
    app.add_typer(checkpoint.app, name="checkpoint", cls=Group, rich_help_panel=RUN)
    app.add_typer(data.app, name="data", cls=Group, rich_help_panel=RUN)
    app.add_typer(simulate, name="simulate", rich_help_panel=PLAN)
    for name, group in extensions:
        app.add_typer(group, name=name, cls=Group, rich_help_panel=PROVE)
    return app
