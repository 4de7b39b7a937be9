"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NewName = Annotated[str | None, typer.Option("--name", help="The run's name, instead of the recipe's.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. sync.quorum=2; KEY= removes the key."),
]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="The run's name in runs/, or its folder [the only run in runs/]."),
]
RunDir = Annotated[str | None, typer.Option("--run-dir", help="The run's store, a folder or file:// URI [runs/NAME].")]
RunFolder = Annotated[str, typer.Argument(metavar="RUN_DIR", help="The run's store, for example runs/demo.")]
