"""`diloco data prepare`: inputs to parts in worker processes, parts to shards, and last the manifest.

Everything follows from the inputs and the options, never from the number of workers. The folder is made under another
name beside it, and renamed once it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.training.data import manifest as manifests
from learners.training.data.manifest import Manifest, Tokenizer
from learners.training.data.tokenizer import ENDS, ByteCoder, Coder, FileCoder
from orchestrator.prepare import shards
from orchestrator.prepare.sources import PART_BYTES, Slice, Unreadable, cut, documents, found
from orchestrator.recipe.problems import InputError, Problem
from outer.background import end_process, thread

TOKENIZER = "tokenizer.json"
SAMPLE_BYTES = 64 * 2**20  # of text that a BPE is trained on
TEXT_BYTES = 2**20  # characters tokenized at once
LONG_RUN = re.compile(r"\S{256}|\s{256}")  # a BPE's training takes for ever on longer words


@dataclass(frozen=True)
class PrepareOptions:
    """The options of the command. `train_bpe`: the vocabulary of a byte-level BPE to train first."""

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


DRAFT = ".draft"  # in the folder, until it is whole
Show = Callable[[str, int, int], None]  # the stage, bytes done, bytes in all


def prepare(options: PrepareOptions, show: Show) -> dict[str, Any]:
    """Prepare, and return the outcome as `--json` prints it; `mb_s`: 1e6 bytes of text made in a second.

    Raises InputError where nothing can be prepared. What is unreadable beside the rest is in the outcome.
    """
    sources, unreadable, others = found(options.inputs)
    slices, damaged = cut(sources, options.part_bytes)
    unreadable += damaged
    if not slices:
        raise InputError(_no_text(options, unreadable, others))
    draft = options.out / DRAFT  # on the same disk; an interrupted call may have left it
    if options.out.exists() and (not options.out.is_dir() or {*options.out.iterdir()} - {draft}):
        fix = "give a new folder, or an empty one"
        raise InputError([Problem("--out", str(options.out), "is there already, and is not empty", fix)])
    folder, parts = draft / "made", draft / "parts"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        folder.mkdir(parents=True)
        parts.mkdir()
        coder, sha256 = _tokenizer(options, folder, slices, show)
        tokenizer = None if sha256 is None else str(folder / TOKENIZER)
        work = [
            TextPart(str(parts / f"{index:06}"), each, tokenizer, options.end_token, options.field, options.held_out)
            for index, each in enumerate(slices)
        ]
        begun = time.monotonic()
        made = _all(work, options.workers, show)
        seconds = time.monotonic() - begun
        unreadable += [one for part in made for one in part.unreadable]
        if sum(one.train + one.held_out for one in made) < 2:
            raise InputError(_no_text(options, unreadable, others))
        manifest = _joined(options, folder, coder, sha256, work, made, show)
        text = manifest.text()
        for each in sorted(folder.iterdir()):
            os.replace(each, options.out / each.name)
        (draft / manifests.FILE).write_text(text)
        os.replace(draft / manifests.FILE, options.out / manifests.FILE)  # last: without it the folder is no data
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            options.out.rmdir()  # if nothing was made
    return {
        "path": str(options.out),
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "vocabulary": manifest.vocabulary,
        "dtype": manifest.dtype,
        "tokens": sum(shard.tokens for shard in manifest.train),
        "tokens_held_out": sum(shard.tokens for shard in manifest.held_out),
        "shards": len(manifest.train) + len(manifest.held_out),
        "documents": manifest.made_from["documents"],
        "parts": len(made),
        "bytes": sum(one.bytes for one in made),
        "mb_s": sum(one.bytes for one in made) / 1e6 / max(seconds, 1e-9),
        "unreadable": [asdict(one) for one in dict.fromkeys(unreadable)],
        "others": dict(others.most_common()),
    }


def _no_text(options: PrepareOptions, unreadable: Sequence[Unreadable], others: Iterable[str]) -> list[Problem]:
    fix = "name files with text" + "".join(f", by a glob such as 'FOLDER/**/*{each}'" for each in [*others][:1])
    found = unreadable or [Unreadable(", ".join(options.inputs), "hold no text")]
    return [Problem("IN", one.input, one.reason, fix) for one in found]


# ------------------------------------------------------------------ the tokenizer


def _tokenizer(
    options: PrepareOptions, folder: Path, slices: Sequence[tuple[Slice, ...]], show: Show
) -> tuple[Coder, str | None]:
    """Copy the tokenizer into the folder, or train it there; return it and its SHA-256. Raises InputError."""
    path = folder / TOKENIZER
    field = "--tokenizer" if options.tokenizer else "--train-bpe"
    try:
        if options.tokenizer is not None:
            path.write_text(options.tokenizer.read_text(encoding="utf-8-sig"))
        elif options.train_bpe is not None:
            path.write_text(_trained(options, options.train_bpe, slices, show))
        else:
            return ByteCoder(), None
        return FileCoder(path, options.end_token), hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        text, _, fix = str(error).rpartition("; ")
        fix = fix if text else "give a tokenizer.json of the library tokenizers"
        value = str(options.tokenizer or options.train_bpe)
        raise InputError([Problem(field, value, text or str(error), fix)]) from error


def _trained(options: PrepareOptions, vocabulary: int, parts: Sequence[tuple[Slice, ...]], show: Show) -> str:
    """Train a byte-level BPE on the first documents of every part, and return its tokenizer.json."""
    try:
        from tokenizers import Tokenizer as Bpe
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ValueError("needs the library tokenizers; in the checkout: pip install -e '.[data]'") from error
    bpe: Any = Bpe(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[options.end_token or ENDS[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    share = max(1, SAMPLE_BYTES // len(parts))
    total = min(SAMPLE_BYTES, sum(one.bytes for slices in parts for one in slices))

    def texts() -> Iterator[str]:
        done = 0
        for slices in parts:
            left = share
            for text in (text for one in slices for text in documents(one, options.field, [])):
                if not _held_out(_digest(text), options.held_out):
                    yield from in_short_runs(text[:left])
                    done += min(left, len(text))
                    left -= len(text)
                    show("training the BPE", min(done, total), total)
                if left <= 0:
                    break

    bpe.train_from_iterator(texts(), trainer)
    return str(bpe.to_str(pretty=False))


def in_short_runs(text: str) -> Iterator[str]:
    """The text in pieces, cut where it has no white space, or nothing else, for long."""
    yield from (text[b:e] for b, e in pairwise([0, *(run.end() for run in LONG_RUN.finditer(text)), len(text)]))


# ------------------------------------------------------------------ a part, in a worker


@dataclass(frozen=True)
class TextPart:
    """A part to make. Its files are STEM.train and STEM.held_out; `tokenizer` is a path, None: bytes."""

    stem: str
    slices: tuple[Slice, ...]
    tokenizer: str | None
    end_token: str | None
    field: str
    held_out: float


@dataclass(frozen=True)
class Made:
    """How many tokens a part has on each side; its documents, and the bytes that they came from."""

    train: int
    held_out: int
    documents: int
    bytes: int
    unreadable: tuple[Unreadable, ...]


def make(part: TextPart) -> Made:
    """Tokenize a part."""
    coder, unreadable, documents_made = _coder(part.tokenizer, part.end_token), list[Unreadable](), 0
    dtype = np.dtype(manifests.smallest_dtype(coder.vocabulary)).newbyteorder("<")
    texts = (text for piece in part.slices for text in documents(piece, part.field, unreadable))
    with open(f"{part.stem}.train", "wb") as train, open(f"{part.stem}.held_out", "wb") as held_out:
        for digest, tokens in _tokenized(texts, coder):
            file = held_out if _held_out(digest, part.held_out) else train
            file.write(np.append(tokens, coder.end).astype(dtype).tobytes())
            documents_made += 1
        sizes = train.tell() // dtype.itemsize, held_out.tell() // dtype.itemsize
        return Made(*sizes, documents_made, sum(one.bytes for one in part.slices), tuple(unreadable))


# ------------------------------------------------------------------ text to tokens


@lru_cache(maxsize=1)
def _coder(tokenizer: str | None, end_token: str | None) -> Coder:
    return ByteCoder() if tokenizer is None else FileCoder(Path(tokenizer), end_token)


def _tokenized(texts: Iterator[str], coder: Coder) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """(SHA-256 of its text, tokens without the end) of each document; about TEXT_BYTES are in memory at once."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= TEXT_BYTES:
            yield from zip(map(_digest, group), coder.encode(group), strict=True)
            group, size = [], 0
    yield from zip(map(_digest, group), coder.encode(group), strict=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _held_out(digest: str, share: float) -> bool:
    """Whether the document of this digest is kept for evaluation."""
    return int(digest[:16], 16) < share * 2.0**64


# ------------------------------------------------------------------ all parts


def _all(work: Sequence[TextPart], workers: int, show: Show) -> list[Made]:
    """Make every part in worker processes. An exception of one is raised here."""
    total, made = sum(one.bytes for part in work for one in part.slices), list[Made]()
    show("tokenizing", 0, total)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(work)), mp_context=context, initializer=_alone) as pool:
        try:
            done = 0
            for one in pool.map(make, work):
                made.append(one)
                done += one.bytes
                show("tokenizing", done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return made


def _alone() -> None:
    """In a worker: tokenize in one thread, since workers are many; end when the parent has been killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    thread("parent", watch, end_process)


def _joined(
    options: PrepareOptions,
    folder: Path,
    coder: Coder,
    sha256: str | None,
    work: Sequence[TextPart],
    made: Sequence[Made],
    show: Show,
) -> Manifest:
    """Write the shards, and describe them."""
    dtype = manifests.smallest_dtype(coder.vocabulary)
    train, held_out = _sides([Path(part.stem) for part in work], made, options.held_out)
    total = sum(one.train + one.held_out for one in made) * np.dtype(dtype).itemsize
    done = 0

    def shown(count: int) -> None:
        nonlocal done
        done += count
        show("writing shards", done, total)

    files = [
        shards.write(folder, name, spans, dtype, options.shard_tokens, shown)
        for name, spans in (("train", train), ("held_out", held_out))
    ]
    return Manifest(
        format=manifests.FORMAT,
        dtype=dtype,
        vocabulary=coder.vocabulary,
        end_of_document=coder.end,
        tokenizer=None if sha256 is None else Tokenizer(TOKENIZER, sha256),
        train=files[0],
        held_out=files[1],
        made_from={
            "documents": sum(one.documents for one in made),
            "end_token": options.end_token,
            "field": options.field,
            "held_out": options.held_out,
            "shard_tokens": options.shard_tokens,
        },
    )


def _sides(
    stems: Sequence[Path], made: Sequence[Made], share: float
) -> tuple[list[shards.TokenSpan], list[shards.TokenSpan]]:
    """Return the training and the held-out tokens in the order of the parts.

    Where the documents that the hashes hold out are not near the share, because documents are few or of very different
    lengths: exactly the share, and what is too much or lacking is taken from the end of the other side.
    """
    train, held = (
        [shards.TokenSpan(stem.with_suffix(name), 0, tokens(one)) for stem, one in zip(stems, made, strict=True)]
        for name, tokens in ((".train", attrgetter("train")), (".held_out", attrgetter("held_out")))
    )
    total, found = (sum(span.end for span in spans) for spans in (train + held, held))
    wanted = max(1, round(total * share))
    if found > 1.5 * wanted:
        held, more = _cut(held, wanted)
        return train + more, held
    if found < 0.5 * wanted:
        train, more = _cut(train, total - wanted)
        return train, held + more
    return train, held


def _cut(spans: Sequence[shards.TokenSpan], count: int) -> tuple[list[shards.TokenSpan], list[shards.TokenSpan]]:
    """The first `count` tokens of the spans, and the others."""
    first, others = list[shards.TokenSpan](), list[shards.TokenSpan]()
    for span in spans:
        middle = min(span.end, span.begin + count)
        first.append(replace(span, end=middle))
        others.append(replace(span, begin=middle))
        count -= middle - span.begin
    return first, others
