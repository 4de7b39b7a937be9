"""`diloco data prepare|check`: text tokenized into shards for [data] kind = "tokens", and shards checked."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from orchestrator.cli.errors import CHECK_FAILED, reported
from orchestrator.cli.options import AsJson
from orchestrator.recipe.problems import InputError, Problem

app = typer.Typer(help="Prepare and check token shards.", no_args_is_help=True)

NAMED_MOST = 20
PLAIN_EVERY_S = 5.0
HELD_OUT_MOST = 0.5


@app.command()
def prepare(
    inputs: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Files, folders or globs: text, jsonl, parquet, Arrow.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder, or one that was interrupted.")],
    tokenizer: Annotated[Path | None, typer.Option(metavar="FILE", help="A tokenizer.json [bytes].")] = None,
    train_bpe: Annotated[
        int | None, typer.Option(metavar="N", min=257, help="Train a byte-level BPE of N tokens on the text.")
    ] = None,
    end_token: Annotated[
        str | None, typer.Option(metavar="NAME", help="The token that ends a document [a usual name].")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes [the cores].")] = None,
    shard_tokens: Annotated[int, typer.Option(min=1024, help="Tokens in a shard.")] = 2**28,
    held_out: Annotated[float, typer.Option(help="Share of the documents kept for evaluation.")] = 0.01,
    field: Annotated[str, typer.Option(help="Of jsonl, parquet and Arrow: where the text is.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Tokenize text into shards for [data] kind = "tokens"; the same command continues after an interruption."""
    with reported(as_json):
        from orchestrator.prepare import preparation

        problems = []
        if tokenizer is not None and train_bpe is not None:
            problems.append(Problem("--train-bpe", train_bpe, "is given with --tokenizer", "give one of the two"))
        if not 0.0 < held_out <= HELD_OUT_MOST:
            fix = f"give a share above 0, at most {HELD_OUT_MOST}"
            problems.append(Problem("--held-out", held_out, "is no such share", fix))
        if problems:
            raise InputError(problems)
        options = preparation.PrepareOptions(
            tuple(inputs), out.absolute(), tokenizer, train_bpe, end_token, workers or _cores(), shard_tokens, held_out,
            field,
        )  # fmt: skip
        with _Bar() as bar:
            record = preparation.prepare(options, bar.show) | {"path": str(out)}
        _name([f"{one['input']}: {one['reason']}" for one in record["unreadable"]], "left out")
        if record["others"]:
            told = ", ".join(f"{suffix} ({count:,})" for suffix, count in list(record["others"].items())[:NAMED_MOST])
            typer.echo(f"not read, because their names are not those of text: {told}", err=True)
        if as_json:
            typer.echo(json.dumps(record))
        else:
            kept = f", {record['parts_kept']} of {record['parts']} parts kept" if record["parts_kept"] else ""
            typer.echo(
                f"wrote {out}: {record['tokens']:,} tokens and {record['tokens_held_out']:,} held out, of "
                f"{record['documents']:,} documents, in {record['shards']} shards; vocabulary "
                f"{record['vocabulary']:,}; {record['mb_s']:.1f} MB/s{kept}"
            )
            typer.echo(f'in the recipe: [data] kind = "tokens", path = "{out}"')
        if record["unreadable"]:
            raise typer.Exit(CHECK_FAILED)


@app.command("check")
def check(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A prepared folder, or the URI of one.")],
    as_json: AsJson = False,
) -> None:
    """Read every shard of a prepared folder, and name each that is missing or has changed.

    Of a URI, it fills this host's cache.
    """
    with reported(as_json):
        from learners.training.data.shard_folder import ShardFolder
        from orchestrator.prepare import shards

        try:
            place = ShardFolder(folder)
        except ValueError as error:
            text, _, fix = str(error).removeprefix(f"data.path = {folder!r}: ").rpartition("; ")
            raise InputError([Problem("DIR", folder, text, fix)]) from error
        manifest = place.manifest
        files = (*manifest.train, *manifest.held_out)
        total, done = sum(shard.tokens for shard in files) * manifest.itemsize, 0
        with _Bar() as bar:

            def shown(count: int) -> None:
                nonlocal done
                done += count
                bar.show("reading", done, total)

            damaged = shards.damages(place, _cores(), shown)
        if as_json:
            typer.echo(json.dumps({"path": folder, "digest": place.digest, "shards": len(files), "damaged": damaged}))
        else:
            _name(damaged, "damaged")
            typer.echo(f"{len(files)} shards with {total:,} bytes: {'NOT whole' if damaged else 'whole'}")
        if damaged:
            raise typer.Exit(CHECK_FAILED)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _name(lines: list[str], what: str) -> None:
    for line in lines[:NAMED_MOST]:
        typer.echo(f"{what}: {line}", err=True)
    if len(lines) > NAMED_MOST:
        typer.echo(f"{what}: {len(lines) - NAMED_MOST} more", err=True)


class _Bar:
    """Progress on stderr: a bar for each stage on a terminal, a line every few seconds anywhere else."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._stages: dict[str, tuple[object, float]] = {}
        self._said_at = time.monotonic()

    def __enter__(self) -> _Bar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage not in self._stages:
            self._stages[stage] = self._progress.add_task(stage, total=total), now
        task, begun = self._stages[stage]
        self._progress.update(task, completed=done)  # type: ignore[arg-type]
        if not self._console.is_terminal and now - self._said_at >= PLAIN_EVERY_S:
            self._said_at = now
            speed = done / 1e6 / max(now - begun, 1e-9)
            print(f"{stage}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {speed:.1f} MB/s", file=sys.stderr)
