"""The `diloco` command: its subcommands in one list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from orchestrator.cli import (
    attach,
    check,
    check_task,
    checkpoint,
    doctor,
    export,
    init,
    metrics,
    plan,
    replay,
    report,
    run,
    sample,
    scale,
    simulate,
    status,
    submit,
)
from orchestrator.cli.usage import Root


def build(extensions: Sequence[tuple[str, typer.Typer]] = (), starter: Callable[..., Any] | None = None) -> typer.Typer:
    """The command line. `extensions` are named groups of further commands; `starter` starts a run's chaos."""
    app = typer.Typer(
        cls=Root,
        help="Decoupled DiLoCo: one model, trained on islands of compute that wait for nobody.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(context: typer.Context) -> None:
        context.obj = starter

    commands: tuple[Callable[..., None], ...] = (
        init.init,
        plan.plan,
        run.run,
        status.status,
        status.stop,
        scale.scale,
        check_task.check_task,
        export.export,
        sample.sample,
        attach.attach,
        submit.submit,
        report.report,
        metrics.metrics,
        check.check,
        replay.replay,
        doctor.doctor,
    )
    for command in commands:
        app.command()(command)
    app.add_typer(checkpoint.app, name="checkpoint")
    app.add_typer(simulate.app, name="simulate")
    for name, group in extensions:
        app.add_typer(group, name=name)
    return app
