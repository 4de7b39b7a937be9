"""`diloco track RUN`: a run's curves in an experiment tracker, from its log.

A process of its own that reads files: a tracker that is slow, dead or away slows nobody, and the same command goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import Run
from orchestrator.recipe.problems import InputError, Problem, nearest
from orchestrator.recipe.toml_text import load
from orchestrator.store import status_text as words
from orchestrator.store.readers import RECIPE_FILE, located, status_of
from orchestrator.store.run_store import RunStore
from orchestrator.store.watch import LOST_S, RunLost
from orchestrator.telemetry.tracking import SINKS, Curves, Sink

if TYPE_CHECKING:
    from orchestrator.eventlog.reader import LogReader  # which takes its time to import
    from orchestrator.eventlog.tables import LogPart

POLL_S = 0.5


def track(
    to: Annotated[
        list[str],
        typer.Option(metavar="KIND:TARGET", help="tensorboard:FOLDER or wandb:PROJECT; more than once."),
    ],
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run ends.")] = False,
    every: Annotated[int, typer.Option(min=1, help="Syncer steps between two points.")] = 10,
) -> None:
    """Show a run's curves in TensorBoard or Weights & Biases; exit code 5 if some of its log is damaged."""
    with reported():
        from orchestrator.eventlog.reader import LogReader

        store = located(run)
        recipe = load(store.path(RECIPE_FILE))
        sinks = {target: _sink(target, recipe.name, f"{recipe.name}-{recipe.config_hash}") for target in to}
        curves, reader, sent = Curves(every), LogReader(store.root), 0
        for part in following(store, reader) if follow else reader.rest():
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
        typer.echo(f"{recipe.name}: {sent:,} points sent to {', '.join(sinks)}")
        if damage := reader.findings.damage:
            print("\n".join(f"damaged: {each}" for each in damage), file=sys.stderr)
            raise typer.Exit(CHECK_FAILED)


def _sink(text: str, name: str, identity: str) -> Sink:
    kind, _, target = text.partition(":")
    if kind not in SINKS or not target:
        near, fix = nearest(kind, SINKS), "write tensorboard:FOLDER or wandb:PROJECT"
        fix = f"did you mean {near}?" if near and near != kind else fix
        raise InputError([Problem("--to", text, f"is no KIND:TARGET of {', '.join(SINKS)}", fix)])
    try:
        return SINKS[kind](target, name, identity)
    except ImportError as error:
        fix = f"in the checkout: pip install -e '.[{kind}]'"
        raise InputError([Problem("--to", text, f"needs a library: {error}", fix)]) from error
    except Exception as error:  # whatever its library raises
        raise _refused(text, error) from error


def _done(target: str, act: Callable[..., None], *arguments: object) -> None:
    try:
        act(*arguments)
    except Exception as error:  # whatever its library raises
        raise _refused(target, error) from error


def _refused(target: str, error: Exception) -> InputError:
    fix = "see that it can be reached; the same command goes on, and the run does not notice"
    return InputError([Problem("--to", target, f"cannot be written: {type(error).__name__}: {error}", fix)])


def following(store: RunStore, reader: LogReader) -> Iterator[LogPart | None]:
    """The log's parts as they come, and None after each look, until the run has ended. Raises RunLost."""
    while True:
        status = status_of(store)  # before the log: what is written before the run ends is then read
        yield from reader.poll()
        yield None
        if words.part(status, "run").get("state") in words.ENDED:
            yield from reader.rest()
            return
        if (silent_s := time.time() - status.get("written_at", 0.0)) > LOST_S:
            raise RunLost(f"no status for {words.seconds(silent_s)}: the orchestrator's process has ended")
        time.sleep(POLL_S)
