"""`diloco simulate ...`: what fleets of any size would do, by simulation alone. One subcommand a file."""

from __future__ import annotations

import typer

from orchestrator.cli import simulate_goodput, simulate_tape

app = typer.Typer(help="Simulate fleets of any size: nothing is started, nothing is trained.", no_args_is_help=True)
app.command("goodput")(simulate_goodput.goodput)
app.command("tape")(simulate_tape.tape)
