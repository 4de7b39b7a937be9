"""`diloco data prepare`: text tokenized into shards for [data] kind = "tokens"."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import CHECK_FAILED, heard_or_not, reported
from orchestrator.cli.options import AsJson
from orchestrator.cli.progress import Bars
from orchestrator.recipe.problems import InputError, Problem

app = typer.Typer(help="Prepare token shards.", no_args_is_help=True)

NAMED_MOST = 20
HELD_OUT_MOST = 0.5


@app.command()
def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Files, folders, globs: text, jsonl, .gz, .zst, parquet, Arrow."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder, or an empty one.")],
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
    """Tokenize text into shards for [data] kind = "tokens"."""
    with heard_or_not(), reported(as_json):
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
            tuple(inputs), out.absolute(), tokenizer, train_bpe, end_token, workers or cores(), shard_tokens, held_out,
            field,
        )  # fmt: skip
        with Bars() as bars:
            record = preparation.prepare(options, partial(_show, bars)) | {"path": str(out)}
        _name([f"{one['input']}: {one['reason']}" for one in record["unreadable"]], "left out")
        if record["others"]:
            told = ", ".join(f"{suffix} ({count:,})" for suffix, count in list(record["others"].items())[:NAMED_MOST])
            how = f"to read them as text, name them by a glob such as 'FOLDER/**/*{next(iter(record['others']))}'"
            typer.echo(f"not read, because their names are not those of text: {told}; {how}", err=True)
        if as_json:
            typer.echo(json.dumps(record))
        else:
            typer.echo(
                f"wrote {out}: {record['tokens']:,} tokens and {record['tokens_held_out']:,} held out, of "
                f"{record['documents']:,} documents, in {record['shards']} shards; vocabulary "
                f"{record['vocabulary']:,}; {record['mb_s']:.1f} MB/s"
            )
            typer.echo(f'in the recipe: [data] kind = "tokens", path = "{out}"')
        if record["unreadable"]:
            raise typer.Exit(CHECK_FAILED)


def _name(lines: list[str], what: str) -> None:
    for line in lines[:NAMED_MOST]:
        typer.echo(f"{what}: {line}", err=True)
    if len(lines) > NAMED_MOST:
        typer.echo(f"{what}: {len(lines) - NAMED_MOST} more", err=True)


def _show(bars: Bars, stage: str, done: int, total: int) -> None:
    bars.show(stage, done, total, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
