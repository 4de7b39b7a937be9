"""One part of a preparation: documents to tokens, in a worker process. A part that is whole is kept by a restart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from learners.training.data import manifest
from learners.training.data.tokenizer import ByteCoder, Coder, FileCoder
from orchestrator.prepare.sources import Slice, Unreadable, documents

TEXT_BYTES = 2**20  # characters tokenized at once
PIECE = 2**18  # characters of a document that are tokenized together; the next piece begins after the end of a line


@dataclass(frozen=True)
class Settings:
    """What the tokens of a part follow from, but its sources. `tokenizer`: a path, and `sha256`; None: bytes."""

    tokenizer: str | None
    sha256: str | None
    end_token: str | None
    field: str
    held_out: float


@dataclass(frozen=True)
class Part:
    """A part to make. `stem`: its files are STEM.train, STEM.held_out and STEM.json."""

    stem: str
    slices: tuple[Slice, ...]
    settings: Settings

    @property
    def key(self) -> str:
        """Names all that the tokens follow from."""
        settings = asdict(self.settings) | {"tokenizer": None}
        sources = [(one.source.name, one.source.kind, one.source.size, one.source.changed_ns) for one in self.slices]
        content = [settings, sources, [(one.begin, one.end) for one in self.slices]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Made:
    """A part's record: tokens and SHA-256 of both files, and the training document of the smallest hash."""

    key: str
    train: int
    held_out: int
    train_sha256: str
    held_out_sha256: str
    documents: int
    documents_held_out: int
    smallest: tuple[str, int, int]  # hash, first token, end
    bytes: int
    unreadable: tuple[Unreadable, ...]
    kept: bool = False


def make(part: Part) -> Made:
    """Tokenize a part, or find that it has been."""
    stem = Path(part.stem)
    if (before := _whole(part)) is not None:
        return before
    coder = _coder(part.settings)
    unreadable: list[Unreadable] = []
    with _Writer(_draft(stem, ".train"), coder) as train, _Writer(_draft(stem, ".held_out"), coder) as held_out:
        smallest = ("", 0, 0)
        for digest, tokens in _tokenized(_texts(part, unreadable), coder):
            chosen = int(digest[:16], 16) < part.settings.held_out * 2.0**64
            begin = train.tokens
            (held_out if chosen else train).write(tokens)
            if not chosen:
                mine = (digest, begin, train.tokens)
                smallest = min(smallest, mine) if smallest[0] else mine
    made = Made(
        key=part.key,
        train=train.tokens,
        held_out=held_out.tokens,
        train_sha256=train.running.hexdigest(),
        held_out_sha256=held_out.running.hexdigest(),
        documents=train.documents,
        documents_held_out=held_out.documents,
        smallest=smallest,
        bytes=sum(one.bytes for one in part.slices),
        unreadable=tuple(unreadable),
    )
    for suffix in (".train", ".held_out"):
        os.replace(_draft(stem, suffix), stem.with_suffix(suffix))
    _draft(stem, ".json").write_text(json.dumps(asdict(made)))
    os.replace(_draft(stem, ".json"), stem.with_suffix(".json"))
    return made


def _draft(stem: Path, suffix: str) -> Path:
    """A name of this process's own: a worker whose parent was killed may still write the same part."""
    return stem.with_suffix(f"{suffix}-{os.getpid()}")


def _whole(part: Part) -> Made | None:
    """The record of a part that was made from the same things, and whose files have its digests."""
    stem = Path(part.stem)
    try:
        record: dict[str, Any] = json.loads(stem.with_suffix(".json").read_text())
        unreadable = tuple(Unreadable(**one) for one in record.pop("unreadable"))
        digest, begin, end = record.pop("smallest")
        record["kept"] = True
        made = Made(**record, unreadable=unreadable, smallest=(digest, begin, end))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    same = made.key == part.key and not (
        manifest.changed(stem.with_suffix(".train"), made.train_sha256)
        or manifest.changed(stem.with_suffix(".held_out"), made.held_out_sha256)
    )
    return made if same else None


# ------------------------------------------------------------------ text to tokens


def coder_of(settings: Settings) -> Coder:
    """Raises ValueError where the tokenizer cannot be used."""
    return ByteCoder() if settings.tokenizer is None else FileCoder(Path(settings.tokenizer), settings.end_token)


_coder = lru_cache(maxsize=1)(coder_of)


def _texts(part: Part, unreadable: list[Unreadable]) -> Iterator[str]:
    for piece in part.slices:
        yield from documents(piece, part.settings.field, unreadable)


def _tokenized(texts: Iterator[str], coder: Coder) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """(SHA-256 of its text, tokens without the end) of each document; about TEXT_BYTES are in memory at once."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= TEXT_BYTES:
            yield from _encoded(group, coder)
            group, size = [], 0
    yield from _encoded(group, coder)


def _encoded(group: list[str], coder: Coder) -> Iterator[tuple[str, NDArray[np.int64]]]:
    pieces = [list(_pieces(text)) for text in group]
    found = iter(coder.encode([piece for text in pieces for piece in text]))
    for text, of_text in zip(group, pieces, strict=True):
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        yield digest, np.concatenate([next(found) for _ in of_text])


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin > PIECE:
        end = text.rfind("\n", begin, begin + PIECE) + 1 or begin + PIECE
        yield text[begin:end]
        begin = end
    yield text[begin:]


class _Writer:
    """A file of tokens with its digest."""

    def __init__(self, path: Path, coder: Coder) -> None:
        self._path, self._end = path, coder.end
        self._dtype = np.dtype(manifest.smallest_dtype(coder.vocabulary)).newbyteorder("<")
        self.tokens = self.documents = 0
        self.running = hashlib.sha256()

    def __enter__(self) -> _Writer:
        self._file: BinaryIO = self._path.open("wb")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, tokens: NDArray[np.int64]) -> None:
        content = np.append(tokens, self._end).astype(self._dtype).tobytes()
        self._file.write(content)
        self.running.update(content)
        self.tokens += len(tokens) + 1
        self.documents += 1
