"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. sync.quorum=2; KEY= removes the key."),
]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Its name in runs/, its folder, or its store's URI [the only run in runs/]."),
]
RunDir = Annotated[str | None, typer.Option("--run-dir", help="The run's store, a folder or file:// URI [runs/NAME].")]
