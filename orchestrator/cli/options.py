"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _runs(incomplete: str) -> list[str]:
    from orchestrator.store.run_store import known_runs

    return [name for name in known_runs() if name.startswith(incomplete)]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
RecipeFile = Annotated[Path, typer.Argument(help="A TOML file; diloco init writes one.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. sync.quorum=2; KEY= removes the key."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--address", envvar="RAY_ADDRESS", help="A Ray cluster, HOST:PORT; without one, this machine."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew, and rename an earlier run's folder.")]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", autocompletion=_runs, help="A name in runs/, a folder, or a store's URI [the only run in runs/]."
    ),
]
Task = Annotated[
    str | None, typer.Option(metavar="FACTORY", help="The run's task, if it is not built in: allows its code to run.")
]
