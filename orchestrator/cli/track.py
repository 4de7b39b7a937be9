"""`diloco track RUN` and `run.track`: a run's curves in an experiment tracker, from its log.

Beside a run it is a thread of the shell's process that reads files: a tracker that is slow, dead or away slows nobody.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import Run
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.toml_text import load
from orchestrator.store.readers import RECIPE_FILE, located
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.tracking import SINKS, Curves, Sink
from outer.background import thread

if TYPE_CHECKING:
    from orchestrator.eventlog.tables import LogPart  # which takes its time to import

EVERY = 10  # syncer steps between two points
POLL_S, END_S = 0.5, 30.0  # between two looks at the log; to send what is left once the run is over


def track(
    to: Annotated[
        list[str],
        typer.Option(metavar="KIND:TARGET", help="tensorboard:FOLDER or wandb:PROJECT; more than once."),
    ],
    run: Run = None,
    every: Annotated[int, typer.Option(min=1, help="Syncer steps between two points.")] = EVERY,
) -> None:
    """Show a run's curves in TensorBoard or Weights & Biases; exit code 5 if some of its log is damaged."""
    with reported():
        from orchestrator.eventlog.reader import LogReader

        store = located(run)
        sinks, reader = _sinks(store, to), LogReader(store.root)
        sent = _send(reader.rest(), sinks, every)
        typer.echo(f"{store.name}: {sent:,} points sent to {', '.join(sinks)}")
        if damage := reader.findings.damage:
            print("\n".join(f"damaged: {each}" for each in damage), file=sys.stderr)
            raise typer.Exit(CHECK_FAILED)


@contextlib.contextmanager
def beside(store: RunStore, to: Sequence[str], told: Callable[[str], None]) -> Iterator[None]:
    """Send the run's curves within the block as its log grows; what fails is told, and the run goes on.

    Raises InputError for a tracker that cannot be used.
    """
    from orchestrator.eventlog.reader import LogReader

    sinks, reader, over = _sinks(store, to), LogReader(store.root), threading.Event()

    def parts() -> Iterator[LogPart | None]:
        while not over.wait(POLL_S):
            with contextlib.suppress(OSError):  # the folder is away
                yield from reader.poll()
            yield None
        yield from reader.rest()

    sending = thread("track", lambda: _send(parts(), sinks, EVERY), lambda error: told(str(error)))
    try:
        yield
    finally:
        over.set()
        sending.join(END_S)


def _send(parts: Iterable[LogPart | None], sinks: dict[str, Sink], every: int) -> int:
    """Send the points of these parts, and at None what waits; returns how many. Raises InputError."""
    curves, sent = Curves(every), 0
    for part in parts:
        for point in () if part is None else curves.take(part):
            for target, sink in sinks.items():
                if point.step > sink.newest.get(point.series, -1):
                    _done(target, sink.write, point)
                    sent += 1
        if part is None:
            for target, sink in sinks.items():
                _done(target, sink.flush)
    for target, sink in sinks.items():
        _done(target, sink.close)
    return sent


def _sinks(store: RunStore, to: Sequence[str]) -> dict[str, Sink]:
    recipe = load(store.path(RECIPE_FILE))
    return {target: _sink(target, recipe.name, f"{recipe.name}-{recipe.config_hash}") for target in to}


def _sink(text: str, name: str, identity: str) -> Sink:
    kind, _, target = text.partition(":")
    if kind not in SINKS or not target:
        near, fix = nearest(kind, SINKS), "write tensorboard:FOLDER or wandb:PROJECT"
        fix = f"did you mean {near}?" if near and near != kind else fix
        raise InputError([Problem("tracker", text, f"is no KIND:TARGET of {', '.join(SINKS)}", fix)])
    try:
        return SINKS[kind](target, name, identity)
    except ImportError as error:
        fix = f"in the checkout: pip install -e '.[{kind}]'"
        raise InputError([Problem("tracker", text, f"needs a library: {error}", fix)]) from error
    except Exception as error:  # whatever its library raises
        raise _refused(text, error) from error


def _done(target: str, act: Callable[..., None], *arguments: object) -> None:
    try:
        act(*arguments)
    except Exception as error:  # whatever its library raises
        raise _refused(target, error) from error


def _refused(target: str, error: Exception) -> InputError:
    fix = f"see that it can be reached; diloco track RUN --to {target} sends what is missing; the run does not notice"
    return InputError([Problem("tracker", target, f"cannot be written: {type(error).__name__}: {error}", fix)])
