"""`diloco checkpoint now|list`: a run's checkpoints, through its store alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from orchestrator.cli.errors import CHECK_FAILED, FAILED, as_record, reported
from orchestrator.cli.options import AsJson, Run
from orchestrator.lifecycle import requests
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import checkpoints
from orchestrator.store import status_text as words
from orchestrator.store.readers import located, recipe_of, status_if_any
from orchestrator.store.run_store import RunStore
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects, objects

POLL_S = 0.2

app = typer.Typer(help="Take, list and verify checkpoints.", no_args_is_help=True)

Timeout = Annotated[float, typer.Option(min=1.0, help="Seconds to wait for it.")]


@contextmanager
def kept(store: RunStore) -> Iterator[Objects]:
    """The store of journal and checkpoints. A failure of that store inside the block becomes an InputError."""
    uri = store.uri or recipe_of(store).durability.store
    try:
        yield objects(uri or store.root)
    except (OSError, ValueError) as error:
        if isinstance(error, Damaged):
            raise
        fix = "see that this machine can reach it; what object storage needs is read from the environment"
        problem = Problem("durability.store", uri or str(store.root), f"cannot be read: {error}", fix)
        raise InputError([problem]) from error


# ------------------------------------------------------------------ now


@app.command()
def now(run: Run = None, timeout: Timeout = 180.0, as_json: AsJson = False) -> None:
    """Take a checkpoint now, and wait until it is complete; the run trains on."""
    with reported(as_json):
        store = located(run)
        before = store.granted("checkpoint", "run")
        with kept(store) as where:
            requests.checkpoint(store)
            taken = _await(store, where, before, timeout)
            if isinstance(taken, int):
                told = checkpoints.describe(checkpoints.manifest_of(where, taken), time.time())
                typer.echo(json.dumps(told) if as_json else f"{_line(told)}\nin {where}")
                return
        typer.echo(f"error: {taken}; the run trains on, and its earlier checkpoints stay", err=True)
        if as_json:
            typer.echo(as_record(FAILED, "failed", taken))
        raise typer.Exit(FAILED)


def _await(store: RunStore, where: Objects, before: int, seconds: float) -> int | str:
    """The number of a complete checkpoint later than `before`, or why it failed. Raises InputError if none comes."""
    deadline = time.monotonic() + seconds
    while True:
        run = words.part(status_if_any(store) or {}, "run")
        newer = [number for number in checkpoints.known(where) if number > before]
        if whole := [number for number in newer if checkpoints.complete(where, number)]:
            return whole[-1]
        if failed := _failure(store, before):
            return failed
        if run.get("state") in words.ENDED:
            problem = Problem("RUN", run.get("name"), "the run ended meanwhile", "see: diloco checkpoint list")
            raise InputError([problem])
        if time.monotonic() >= deadline:
            fix = "it may still come: diloco checkpoint list; what the store is doing: diloco status"
            raise InputError([Problem("--timeout", seconds, "no checkpoint was whole in time", fix)])
        time.sleep(POLL_S)


def _failure(store: RunStore, before: int) -> str:
    """The log's reason for a failed checkpoint; empty if none failed."""
    from orchestrator.eventlog.facts import CheckpointFailed
    from orchestrator.eventlog.reader import ORCHESTRATOR, ChainReader, Findings, store_of

    parts = ChainReader(store_of(store.root), ORCHESTRATOR, Findings()).poll()
    facts = (event.fact for part in parts for event in part.only((), (CheckpointFailed.__name__,)).events())
    failed = [fact for fact in facts if fact.snapshot > before]
    return f"checkpoint {failed[0].snapshot} failed: {failed[0].reason}" if failed else ""


# ------------------------------------------------------------------ list


@app.command("list")
def list_(
    run: Run = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte, the journal's too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a run's checkpoints, oldest first; exit code 5 if one is damaged, as far as their manifests show."""
    with reported(as_json):
        store = located(run)
        with kept(store) as where:
            found = checkpoints.listed(where, time.time(), verify)
            journal = checkpoints.journal_damage(where) if verify else []
        if as_json:
            typer.echo(json.dumps({"checkpoints": found} | ({"journal": {"damage": journal}} if verify else {})))
        else:
            for each in found:
                typer.echo(_line(each))
            typer.echo(f"{len(found)} checkpoint{'s' * (len(found) != 1)} in {where}")
            if verify:
                typer.echo(f"journal: {'; '.join(['DAMAGED', *journal]) if journal else 'whole'}")
        if journal or any(each["damage"] for each in found):
            raise typer.Exit(CHECK_FAILED)


def _line(each: dict[str, Any]) -> str:
    if "syncer_step" not in each:
        return f"{each['snapshot']:>6}  DAMAGED: {'; '.join(each['damage'])}"
    notes = [f"DAMAGED: {'; '.join(each['damage'])}"] if each.get("damage") else []
    notes += ["the run was stopped with it"] if each["final"] else []
    notes += [f"without {', '.join(each['omitted'])}"] if each["omitted"] else []
    size = f"{each['tokens_committed']:,} tokens, {each['bytes']:,} bytes, {len(each['learners'])} learners"
    about = f"step {each['syncer_step']:,}, {size}, {words.seconds(each['age_s'])} old"
    return f"{each['snapshot']:>6}  {'; '.join([about, *notes])}"
