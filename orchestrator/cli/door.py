"""`diloco door FOLDER` and `diloco invite REGION FOLDER`: a folder as the store of runs in other regions."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import reported
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.runtime.job import run_until_signalled
from outer.journal.door import INVITATION

Served = Annotated[Path, typer.Argument(help="The folder of the objects; made if there is none.")]


def door(
    folder: Served = Path("."),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The TCP port; 0 takes a free one.")] = 7443,
) -> None:
    """Serve a folder as the store of runs in other regions, over HTTPS."""
    with reported(), contextlib.suppress(KeyboardInterrupt):
        run_until_signalled(_serve(folder.absolute(), host, port))


async def _serve(folder: Path, host: str, port: int) -> None:
    from orchestrator.regions.door import DoorServer

    server = DoorServer(folder)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a file, and 1024 are a usual limit
    async with contextlib.AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(server.serving(host, port))
        except (OSError, OverflowError) as error:
            problem = Problem("--host, --port", f"{host}:{port}", f"cannot be used: {error}", "give others")
            raise InputError([problem]) from error
        name = socket.gethostname() if host in ("0.0.0.0", "::") else host
        server.invitations.address = f"{name}:{found}"
        typer.echo(f"https://{name}:{found} serves {folder}, with the certificate {server.invitations.fingerprint}")
        typer.echo(f"invite a region: diloco invite REGION {folder}")
        await asyncio.Event().wait()


def invite(
    region: Annotated[str, typer.Argument(help="control: the syncer's and the orchestrator's; or another's name.")],
    folder: Served = Path("."),
) -> None:
    """Make a region's token for a door. It replaces the earlier one, and is printed as its nodes need it."""
    from orchestrator.regions.invitations import CONTROL, RIGHTS, Invitations

    with reported():
        invitations = Invitations(folder.absolute())
        try:
            invitation = invitations.invite(region)
        except ValueError as error:
            raise InputError([Problem("REGION", region, str(error), "give a name such as eu")]) from error
        rights = "everything" if region == CONTROL else RIGHTS
        typer.echo(f'# durability.store = "https://{invitations.address}/RUN"; {region} may {rights}. Keep it secret:')
        typer.echo(f"export {INVITATION}={invitation}")
