"""`diloco watch [RUN ...]`: a live page of runs, from their folders alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import reported
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.runtime.job import run_until_signalled
from orchestrator.store.readers import located
from orchestrator.store.run_store import RunStore, known_runs
from outer.background import thread

RUNS_MAX = 8
SHUT_S, END_S = 0.2, 2.0  # between two looks at whether the run is over; for the page to end then


def watch(
    context: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Names in runs/, folders, or stores' URIs [all in runs/]."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0 takes a free one.")] = 0,
    control: Annotated[
        bool, typer.Option("--control", help="Let the page stop, scale, checkpoint and break the runs.")
    ] = False,
) -> None:
    """Show runs on a live page, in the browser."""
    with reported(), contextlib.suppress(KeyboardInterrupt):
        stores = [located(run) for run in runs or known_runs()] or [located(None)]
        if len(stores) > RUNS_MAX:
            raise InputError([Problem("RUN", len(stores), f"a page shows {RUNS_MAX} runs at most", "name some")])
        run_until_signalled(_serve(stores, port, context.obj.strike if control else None))


async def _serve(stores: Sequence[RunStore], port: int, strike: Any) -> None:
    from orchestrator.watch.server import HOST, WatchServer, name_of  # which take their time to import

    server = WatchServer(stores, strike)
    async with contextlib.AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(server.serving(port))
        except OSError as error:
            raise InputError([Problem("--port", port, f"cannot be used: {error}", "give another")]) from error
        typer.echo(f"http://{HOST}:{found}/{f'#token={server.token}' if server.token else ''}")
        typer.echo(f"shows {', '.join(map(name_of, stores))}; Ctrl-C ends it, not the runs")
        await asyncio.Event().wait()


@contextlib.contextmanager
def beside(store: RunStore, told: Callable[[str], None]) -> Iterator[None]:
    """Serve this run's page within the block, from a thread that tells its address; nothing is told if it cannot."""
    from orchestrator.watch.server import HOST, WatchServer  # before the thread: Ray forks beside it

    over = threading.Event()

    async def serve() -> None:
        async with WatchServer([store], failed=lambda error: None).serving(0) as port:
            told(f"a live page: http://{HOST}:{port}/")
            while not over.is_set():
                await asyncio.sleep(SHUT_S)

    running = thread("watch", lambda: asyncio.run(serve()), lambda error: None)
    try:
        yield
    finally:
        over.set()
        running.join(END_S)
