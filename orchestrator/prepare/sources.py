"""The inputs of `diloco data prepare`, how they are cut into parts, and the documents of a part.

Text files are one document each; jsonl has one a line, parquet and Arrow one a row. A text file above TEXT_BYTES is cut
at ends of lines, each piece a document. The cut follows from names, sizes and row groups alone, never from workers. A
compressed file is in one part.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from learners.training.data.byte_corpus import unusable, walk

PART_BYTES = 32 * 2**20
TEXT_BYTES = 4 * 2**20  # of a text that is tokenized at once, which takes many times its memory
ROWS, READ_BYTES = 256, 2**20  # read at once
CUT_SEARCH = 2**20  # bytes in which a long text's cut looks for the end of a line
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
PACKED = (".xz", ".zip", ".tar", ".tgz")
TEXT_SUFFIXES = (".txt", ".md", ".py", ".rst", ".html", ".tex", ".c", ".h", ".cc", ".cpp", ".rs", ".go", ".java", ".js")


@dataclass(frozen=True)
class TextSource:
    """A file. `name`: relative to the input that it was found in. `kind`: text, jsonl, parquet or arrow."""

    name: str
    path: str
    kind: str
    compression: str | None  # as pyarrow calls it
    size: int


@dataclass(frozen=True)
class Slice:
    """A part's share of a source, of so many `bytes`: bytes [begin, end), row groups of parquet or batches of Arrow."""

    source: TextSource
    begin: int
    end: int
    bytes: int


@dataclass(frozen=True)
class Unreadable:
    """An input, or a document of it, that was left out."""

    input: str
    reason: str


def found(inputs: Sequence[str]) -> tuple[list[TextSource], list[Unreadable], Counter[str]]:
    """Every file of the inputs, which are files, folders or globs: in their order, each sorted by name.

    And what is left out of a folder: files that cannot be read, and how many files of each other suffix.
    """
    sources, unreadable, others = list[TextSource](), list[Unreadable](), Counter[str]()
    for given in inputs:
        root = Path(given).expanduser()
        if root.is_dir():
            every = [(path.relative_to(root).as_posix(), path) for path in walk(root, ("__pycache__",))]
            named = [each for each in every if _suffix(each[1]) in (*SUFFIXES, *TEXT_SUFFIXES, *PACKED)]
            others.update(path.suffix or path.name for _, path in set(every).difference(named))
        else:
            paths = [root] if root.is_file() else [Path(path) for path in glob(str(root), recursive=True)]
            base = Path(os.path.commonpath([str(path.parent) for path in paths] or ["."]))
            named = [(path.relative_to(base).as_posix(), path) for path in paths if not path.is_dir()]
        if not named:
            unreadable.append(Unreadable(given, "no such file, and no text, jsonl, parquet or Arrow files there"))
        for name, path in sorted(named):
            kind, compression = SUFFIXES.get(_suffix(path), "text"), COMPRESSED.get(path.suffix.lower())
            if why := "is packed: unpack it" if _suffix(path) in PACKED else unusable(path):
                unreadable.append(Unreadable(name, why))
                continue
            sources.append(TextSource(name, str(path.absolute()), kind, compression, path.stat().st_size))
    return list(dict.fromkeys(sources)), unreadable, others


def _suffix(path: Path) -> str:
    """What a file's name ends with, in small letters, beneath its compression."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


# ------------------------------------------------------------------ parts


def cut(sources: Iterable[TextSource], part_bytes: int) -> tuple[list[tuple[Slice, ...]], list[Unreadable]]:
    """The parts, each of about `part_bytes`, in the order of the sources."""
    parts, unreadable, size = list[list[Slice]](), list[Unreadable](), 0
    for source in sources:
        try:
            slices = list(_slices(source, part_bytes))
        except (OSError, pyarrow.ArrowException) as error:
            unreadable.append(Unreadable(source.name, _line(error)))
            continue
        for piece in slices:
            if not parts or size + piece.bytes > part_bytes:
                parts.append([])
                size = 0
            parts[-1].append(piece)
            size += piece.bytes
    return [tuple(part) for part in parts], unreadable


def _slices(source: TextSource, part_bytes: int) -> Iterator[Slice]:
    units, step = source.size, source.size if source.compression else part_bytes
    if source.kind == "text" and not source.compression:
        step = min(step, TEXT_BYTES)
    if source.kind == "parquet":
        with pyarrow.parquet.ParquetFile(source.path) as file:
            units, step = file.metadata.num_row_groups, 1
    if source.kind == "arrow":
        units = sum(1 for _ in _batches(source.path))
        step = max(1, part_bytes * units // max(1, source.size))
    for begin in range(0, units, step or 1):
        end = min(begin + step, units)
        yield Slice(source, begin, end, source.size * (end - begin) // units)


# ------------------------------------------------------------------ documents


def documents(piece: Slice, field: str, unreadable: list[Unreadable]) -> Iterator[str]:
    """The documents of a slice that are not empty. What cannot be read is appended to `unreadable`."""
    reader = {"text": _texts, "jsonl": _lines, "parquet": _rows, "arrow": _rows}[piece.source.kind]
    bad, first = 0, ""
    try:
        for place, read in reader(piece, field):
            try:
                text = _sound(read())
            except (ValueError, LookupError, RecursionError) as error:
                bad, first = bad + 1, first or f"at {place}: {_line(error)}"
                continue
            if text:
                yield text
    except (OSError, ValueError, pyarrow.ArrowException, KeyError) as error:
        unreadable.append(Unreadable(piece.source.name, _line(error)))
    if bad:
        what = f"{bad:,} document{'s' * (bad > 1)} without text, the first {first}"
        unreadable.append(Unreadable(piece.source.name, what))


Document = tuple[str, Callable[[], Any]]  # its place, and how it is read


def _sound(given: Any) -> str:
    """The text, or "" for None. Raises ValueError for what tokenizers do not take."""
    text = str(given or "")
    text.encode()  # raises for a lone surrogate
    if "\0" in text:
        raise ValueError("it has a NUL character")
    return text


def _opened(source: TextSource) -> io.BufferedReader:
    return io.BufferedReader(pyarrow.input_stream(source.path, source.compression), READ_BYTES)


def _texts(piece: Slice, field: str) -> Iterator[Document]:
    with _opened(piece.source) as file:
        if piece.source.compression:
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            while part := text.read(TEXT_BYTES) + text.readline(CUT_SEARCH):
                yield "its beginning", partial(str, part)
            return
        begin, end = _line_start(file, piece.begin, CUT_SEARCH), _line_start(file, piece.end, CUT_SEARCH)
        file.seek(begin)
        content = file.read(end - begin)
        yield f"byte {begin:,}", lambda: content.decode("utf-8" if begin else "utf-8-sig")


def _lines(piece: Slice, field: str) -> Iterator[Document]:
    with _opened(piece.source) as file:
        at, end = 0, 2**63
        if not piece.source.compression:
            at, end = _line_start(file, piece.begin, None), _line_start(file, piece.end, None)
            file.seek(at)
        while at < end and (line := file.readline()):
            if line.strip():
                yield f"byte {at:,}", partial(_text_of, line, field)
            at += len(line)


def _text_of(line: bytes, field: str) -> str:
    record = json.loads(line)
    texts = {key: value for key, value in record.items() if isinstance(value, str)} if isinstance(record, dict) else {}
    if field not in texts:
        raise LookupError(f"no text in a field {field!r}; there is in: {', '.join(texts) or 'none'}")
    return texts[field]


def _rows(piece: Slice, field: str) -> Iterator[Document]:
    row = 0
    for batch in _parquet(piece, field) if piece.source.kind == "parquet" else _arrow(piece):
        _has(field, batch.schema)
        for value in batch.column(field):
            yield f"row {row:,} of its part", value.as_py
            row += 1


def _parquet(piece: Slice, field: str) -> Iterator[Any]:
    with pyarrow.parquet.ParquetFile(piece.source.path) as file:
        _has(field, file.schema_arrow)
        yield from file.iter_batches(ROWS, row_groups=list(range(piece.begin, piece.end)), columns=[field])


def _arrow(piece: Slice) -> Iterator[Any]:
    return islice(_batches(piece.source.path), piece.begin, piece.end)


def _batches(path: str) -> Iterator[Any]:
    """The record batches of an Arrow file in either format; the library datasets writes streams."""
    with pyarrow.memory_map(path) as file:
        try:
            whole = pyarrow.ipc.open_file(file)
        except pyarrow.ArrowInvalid:
            file.seek(0)
            yield from pyarrow.ipc.open_stream(file)
        else:
            yield from map(whole.get_batch, range(whole.num_record_batches))


def _has(field: str, schema: Any) -> None:
    if field not in schema.names:
        raise KeyError(f"no column {field!r}; there are {', '.join(schema.names)}")
    kind = schema.field(field).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if str(kind) not in ("string", "large_string", "string_view", "null"):
        raise KeyError(f"column {field!r} holds {kind}, not text")


def _line_start(file: BinaryIO, at: int, within: int | None) -> int:
    """Where the first line at or after byte `at` begins; without one `within` so many bytes, the next character."""
    if at == 0:
        return 0
    file.seek(at - 1)
    if within is None:
        file.readline()
        return file.tell()
    seen = file.read(within + 1)
    if (newline := seen.find(b"\n")) >= 0:
        return at + newline
    return at + next((index for index, byte in enumerate(seen[1:]) if byte & 0xC0 != 0x80), 0)


def _line(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
