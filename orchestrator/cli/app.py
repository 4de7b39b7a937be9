"""The `diloco` command: its subcommands in one list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from orchestrator.cli import check, doctor, init, metrics, run, status


def build(extensions: Sequence[tuple[str, typer.Typer]] = (), starter: Callable[..., Any] | None = None) -> typer.Typer:
    """The command line. `extensions` are named groups of further commands; `starter` starts a run's chaos."""
    app = typer.Typer(
        help="Decoupled DiLoCo: one model, trained on islands of compute that wait for nobody.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(context: typer.Context) -> None:
        context.obj = starter

    for command in (init.init, run.run, status.status, status.stop, check.check, metrics.metrics, doctor.doctor):
        app.command()(command)
    for name, group in extensions:
        app.add_typer(group, name=name)
    return app
