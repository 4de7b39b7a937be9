"""`diloco data prepare`: inputs to parts in worker processes, parts to shards, and last the manifest.

Everything follows from the inputs and the options, never from the number of workers or from where it was interrupted.
Parts are kept in FOLDER/parts until the manifest is written, so that the same command continues.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learners.training.data import manifest as manifests
from learners.training.data.manifest import Manifest, Tokenizer
from learners.training.data.tokenizer import ENDS, Coder
from orchestrator.prepare import shards
from orchestrator.prepare.parts import Made, Part, Settings, coder_of, make
from orchestrator.prepare.sources import PART_BYTES, Slice, Unreadable, cut, documents, found
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.lock import alone

PARTS, PLAN, TOKENIZER = "parts", "plan.json", "tokenizer.json"
SAMPLE_BYTES = 64 * 2**20  # of text that a BPE is trained on
ASKED = 4  # parts for each worker that are made or wait


@dataclass(frozen=True)
class Options:
    """As on the command line. `train_bpe`: the vocabulary of a byte-level BPE to train first."""

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    train_bpe: int | None = None
    end_token: str | None = None
    workers: int = 1
    shard_tokens: int = 2**28
    held_out: float = 0.01
    field: str = "text"
    part_bytes: int = PART_BYTES


@dataclass(frozen=True)
class Prepared:
    """What came of it. `bytes`: of text read, kept parts too; `bytes_made`: without them, in `seconds`."""

    manifest: Manifest
    digest: str
    unreadable: tuple[Unreadable, ...]
    parts: int
    parts_kept: int
    bytes: int
    bytes_made: int
    seconds: float


Show = Callable[[str, int, int], None]  # the stage, bytes done, bytes in all


def prepare(options: Options, show: Show) -> Prepared:
    """Raises InputError where nothing can be prepared. What is unreadable beside the rest is returned."""
    sources, unreadable = found(options.inputs)
    parts, damaged = cut(sources, options.part_bytes)
    unreadable += damaged
    if not parts:
        raise InputError([Problem("IN", one.input, one.reason, "name readable files") for one in unreadable])
    folder = options.out
    _check_folder(folder)
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(alone(folder / PARTS / "lock"))
        except BlockingIOError as error:
            problem = Problem("--out", str(folder), "is being prepared by another process", "wait, or give another")
            raise InputError([problem]) from error
        return _prepared(options, parts, unreadable, show)


def _prepared(
    options: Options, parts: Sequence[tuple[Slice, ...]], unreadable: list[Unreadable], show: Show
) -> Prepared:
    folder = options.out
    begun = time.monotonic()
    settings, coder = _tokenizer(options, parts, show)
    work = [Part(str(folder / PARTS / f"{index:06}"), slices, settings) for index, slices in enumerate(parts)]
    made = _all(work, options.workers, show)
    unreadable += [one for part in made for one in part.unreadable]
    seconds = time.monotonic() - begun
    if sum(one.train + one.held_out for one in made) < 2:
        problems = [Problem("IN", one.input, one.reason, "name readable files") for one in unreadable]
        raise InputError(problems or [Problem("IN", options.inputs, "hold no text", "name files with text")])
    manifest = _joined(options, settings, coder, work, made, show)
    text = manifest.text()
    _replace(folder / manifests.FILE, text)
    shutil.rmtree(folder / PARTS)
    new = [one for one in made if not one.kept]
    return Prepared(
        manifest=manifest,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        unreadable=tuple(dict.fromkeys(unreadable)),
        parts=len(made),
        parts_kept=len(made) - len(new),
        bytes=sum(one.bytes for one in made),
        bytes_made=sum(one.bytes for one in new),
        seconds=seconds,
    )


# ------------------------------------------------------------------ the folder


def _check_folder(folder: Path) -> None:
    """Raises InputError for a folder that is finished, or that holds something else."""
    if (folder / manifests.FILE).exists():
        message = "holds prepared tokens already"
        raise InputError([Problem("--out", str(folder), message, "give another folder, or remove this one")])
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / PARTS).is_dir())):
        message = "holds other files"
        raise InputError([Problem("--out", str(folder), message, "give an empty or a new folder")])


def _replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


# ------------------------------------------------------------------ the tokenizer


def _tokenizer(options: Options, parts: Sequence[tuple[Slice, ...]], show: Show) -> tuple[Settings, Coder]:
    """The tokenizer, copied into the folder or trained there. Raises InputError."""
    path = options.out / TOKENIZER
    settings = Settings(None, None, options.end_token, options.field, options.held_out)
    field = "--tokenizer" if options.tokenizer else "--train-bpe"
    value = options.tokenizer or options.train_bpe
    try:
        if options.tokenizer is not None:
            _replace(path, options.tokenizer.read_text(encoding="utf-8"))
        elif options.train_bpe is not None:
            _train(path, options, options.train_bpe, parts, show)
        else:
            return settings, coder_of(settings)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        settings = Settings(str(path), sha256, options.end_token, options.field, options.held_out)
        return settings, coder_of(settings)
    except (OSError, ValueError) as error:
        text, _, fix = str(error).rpartition("; ")
        fix = fix if text else "give a tokenizer.json of the library tokenizers"
        raise InputError([Problem(field, str(value), text or str(error), fix)]) from error


def _train(path: Path, options: Options, vocabulary: int, parts: Sequence[tuple[Slice, ...]], show: Show) -> None:
    """A byte-level BPE of the first documents of every part, unless this folder has it of the same documents."""
    share = max(1, SAMPLE_BYTES // len(parts))
    sample = [Part("", slices, Settings(None, None, None, options.field, options.held_out)).key for slices in parts]
    key = hashlib.sha256(json.dumps([vocabulary, options.end_token, sample]).encode()).hexdigest()
    plan = options.out / PARTS / PLAN
    if path.exists() and plan.exists() and json.loads(plan.read_text()) == key:
        return
    try:
        from tokenizers import Tokenizer as Bpe
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ValueError("needs the library tokenizers; pip install 'decoupled-diloco[data]'") from error
    end = options.end_token or ENDS[0]
    bpe: Any = Bpe(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    total = min(SAMPLE_BYTES, sum(one.bytes for slices in parts for one in slices))

    def texts() -> Any:
        done = 0
        for slices in parts:
            left = share
            for text in (text for one in slices for text in documents(one, options.field, [])):
                digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
                if int(digest[:16], 16) >= options.held_out * 2.0**64:
                    yield text[:left]
                    done += min(left, len(text))
                    left -= len(text)
                    show("training the BPE", min(done, total), total)
                if left <= 0:
                    break

    bpe.train_from_iterator(texts(), trainer)
    _replace(path, bpe.to_str(pretty=False))
    _replace(plan, json.dumps(key))


# ------------------------------------------------------------------ the parts


def _all(work: Sequence[Part], workers: int, show: Show) -> list[Made]:
    """Every part, made in worker processes; an exception of one is raised here, and whole parts stay."""
    total, done = sum(one.bytes for part in work for one in part.slices), 0
    made: dict[int, Made] = {}
    asked: dict[Future[Made], int] = {}
    rest = iter(enumerate(work))
    show("tokenizing", 0, total)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(work)), mp_context=context, initializer=_alone) as pool:
        try:
            while len(made) < len(work):
                while len(asked) < ASKED * workers and (following := next(rest, None)) is not None:
                    asked[pool.submit(make, following[1])] = following[0]
                for future in wait(asked, return_when=FIRST_COMPLETED).done:
                    index = asked.pop(future)
                    made[index] = future.result()
                    done += made[index].bytes
                    show("tokenizing", done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [made[index] for index in range(len(work))]


def _alone() -> None:
    """In a worker: tokenize in one thread, since workers are many; end when the parent has been killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _joined(
    options: Options, settings: Settings, coder: Coder, work: Sequence[Part], made: Sequence[Made], show: Show
) -> Manifest:
    dtype = manifests.smallest_dtype(coder.vocabulary)
    train, held_out = shards.spans([Path(part.stem) for part in work], made, options.held_out)
    total = sum(one.train + one.held_out for one in made) * np.dtype(dtype).itemsize
    done = 0

    def shown(count: int) -> None:
        nonlocal done
        done += count
        show("writing shards", done, total)

    for stale in [*options.out.glob("*.tokens"), *options.out.glob("*.sums")]:  # of an interrupted preparation
        stale.unlink()
    files = [
        shards.write(options.out, name, spans, dtype, options.shard_tokens, shown)
        for name, spans in (("train", train), ("held_out", held_out))
    ]
    return Manifest(
        format=manifests.FORMAT,
        dtype=dtype,
        vocabulary=coder.vocabulary,
        end_of_document=coder.end,
        tokenizer=None if settings.sha256 is None else Tokenizer(TOKENIZER, settings.sha256),
        train=files[0],
        held_out=files[1],
        made_from={
            "documents": sum(one.documents + one.documents_held_out for one in made),
            "end_token": options.end_token,
            "field": options.field,
            "held_out": options.held_out,
            "shard_tokens": options.shard_tokens,
        },
    )


def as_record(prepared: Prepared, folder: Path) -> dict[str, Any]:
    """For --json."""
    manifest = prepared.manifest
    return {
        "path": str(folder),
        "digest": prepared.digest,
        "vocabulary": manifest.vocabulary,
        "dtype": manifest.dtype,
        "tokens": sum(shard.tokens for shard in manifest.train),
        "tokens_held_out": sum(shard.tokens for shard in manifest.held_out),
        "shards": len(manifest.train) + len(manifest.held_out),
        "documents": manifest.made_from["documents"],
        "parts": prepared.parts,
        "parts_kept": prepared.parts_kept,
        "bytes": prepared.bytes,
        "seconds": prepared.seconds,
        "mb_s": prepared.bytes_made / 1e6 / max(prepared.seconds, 1e-9),
        "unreadable": [asdict(one) for one in prepared.unreadable],
    }
