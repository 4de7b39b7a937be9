"""A byte corpus from text files, and the deterministic, endless order of its samples.

Sample i is the same in every process that reads the same files.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learners.config import DataConfig

Bytes = NDArray[np.uint8]

LFS = b"version https://git-lfs.github.com/spec/"  # begins a file that stands for one that git lfs has not fetched
_SUFFIXES = (".py", ".txt", ".md")
_NOT_SOURCES = ("site-packages", "dist-packages", "test", "tests", "__pycache__")


def check(data: DataConfig) -> None:
    """Check the files by their names and sizes.

    Raises ValueError, naming the field and the fix, if there are none or they are too small for one sample.
    """
    total = sum(path.stat().st_size for _, path in files(data))
    if total < 3 * data.sequence_length:  # one training sample at any phase, and one held-out sample
        raise _too_small(data, total)


class ByteCorpus:
    """All files of the recipe's [data] table, split into training and held-out text.

    `train`, `held_out`: uint8[n], the files concatenated in the order of their relative paths. Raises ValueError
    as `check` does.
    """

    vocabulary = 256

    def __init__(self, data: DataConfig, seed: int) -> None:
        self._length = length = data.sequence_length
        self._seed = seed
        texts = [(name, path.read_bytes()) for name, path in files(data)]
        held = _held_out({name: len(text) for name, text in texts}, data.held_out, length)
        self.train = _joined([text[: len(text) - held[name]] for name, text in texts])
        self.held_out = _joined([text[len(text) - held[name] :] for name, text in texts])
        self.windows = (len(self.train) - length) // length  # the samples of one epoch: whole windows at every phase
        self._held_out_windows = (len(self.held_out) - 1) // length
        if self.windows < 1 or self._held_out_windows < 1:
            raise _too_small(data, len(self.train) + len(self.held_out))

    def batch(self, start: int, count: int) -> Bytes:
        """Samples [start, start + count) of the training text, uint8[count, L + 1].

        Each epoch cuts the text into windows of L bytes at its own phase and takes each window once, in its own
        order. The last byte of a sample is only a target; the next window begins with it.
        """
        offsets = np.empty(count, dtype=np.int64)
        for row in range(count):
            epoch, index = divmod(start + row, self.windows)
            phase, order = _epoch(self._seed, epoch, self.windows, self._length)
            offsets[row] = phase + order[index] * self._length
        return self._cut(self.train, offsets)

    def held_out_batch(self, start: int, count: int) -> Bytes:
        """Samples [start, start + count) for evaluation, uint8[count, L + 1], repeating endlessly.

        Their order is strided, so the first samples, however many, spread evenly over the held-out text.
        """
        order = np.arange(start, start + count, dtype=np.int64) * stride(self._held_out_windows)
        return self._cut(self.held_out, order % self._held_out_windows * self._length)

    def _cut(self, text: Bytes, offsets: NDArray[np.int64]) -> Bytes:
        windows: Bytes = text[offsets[:, None] + np.arange(self._length + 1)]
        return windows


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, windows: int, length: int) -> tuple[int, NDArray[np.intp]]:
    """The phase in bytes and the order of windows of one epoch of the data.

    From the raw output of a counter-based generator, which is the same in every version of NumPy.
    """
    raw = np.random.Philox(key=[seed, epoch]).random_raw(windows + 1)
    return int(raw[0] % length), np.argsort(raw[1:], kind="stable")


def stride(windows: int) -> int:
    """A step coprime to `windows`, near its golden section, whose multiples leave no large gaps."""
    step = max(1, round(windows * 0.6180339887498949))
    while np.gcd(step, windows) != 1:
        step += 1
    return step


# ------------------------------------------------------------------ files


def files(data: DataConfig) -> list[tuple[str, Path]]:
    """(relative path, path) of every file, sorted. Raises ValueError if there is none."""
    if data.path is None:
        root = Path(sysconfig.get_path("stdlib"))
        found = [path for path in walk(root, _NOT_SOURCES) if path.suffix == ".py"]
    else:
        root, found = _chosen(data.path)
    named = sorted((path.relative_to(root).as_posix(), path) for path in found)
    if not named:
        raise ValueError(
            f"data.path = {data.path!r}: no text files there; give a folder with text files, or a glob "
            "such as `corpus/**/*.txt`"
        )
    if odd := [f"{name} {why}" for name, path in named if (why := unusable(path))]:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise ValueError(f"data.path = {data.path!r}: {', '.join(odd[:3])}{more}; repair or remove them")
    return named


def unusable(path: Path) -> str:
    """Why a file cannot be read as text, in words; empty where it can. Reads only its first bytes."""
    try:
        if not path.is_file():
            return "is a broken link" if path.is_symlink() else "is no regular file"
        with path.open("rb") as file:
            return "is a git-lfs pointer: run git lfs pull" if file.read(len(LFS)) == LFS else ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _chosen(pattern: str) -> tuple[Path, list[Path]]:
    """(root folder of relative names, files) of a folder or a glob."""
    root = Path(pattern).expanduser()
    if root.is_dir():
        return root, [path for path in walk(root) if path.suffix in _SUFFIXES]
    matches = glob.glob(str(root), recursive=True)
    if not matches:
        raise ValueError(
            f"data.path = {pattern!r}: no such file or folder, and as a glob it matches nothing here; give "
            "one that exists on every node, or leave it out for the Python standard library"
        )
    files = [path for path in map(Path, matches) if not path.is_dir()]
    return Path(os.path.commonpath([str(path.parent) for path in files] or ["."])), files


def walk(root: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """Every visible entry below a folder that is no folder, except in folders named in `without`.

    Links to folders are followed, into each folder once.
    """
    seen = set[str]()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if name not in without and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _held_out(sizes: Mapping[str, int], share: float, length: int) -> dict[str, int]:
    """How many bytes at the end of each file are held out, by name.

    Whole files, chosen by a hash of the names, so that adding a file moves no other. Where these are not near `share`
    of the bytes, because files are few or of very different sizes: that share of the bytes, whole files in the order
    of the hashes and the end of the last. At least `length` + 1 bytes, and twice `length` are left to train on.
    """
    ranks = {name: hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in sizes}
    held = {name: size * (int.from_bytes(ranks[name][:8], "big") < share * 2**64) for name, size in sizes.items()}
    total = sum(sizes.values())
    least, most = length + 1, max(total - 2 * length, 0)
    left = min(max(round(share * total), least), most)
    if max(left / 2, least) <= sum(held.values()) <= min(left * 3 / 2, most):
        return held
    for name in sorted(sizes, key=ranks.__getitem__):
        held[name] = min(left, sizes[name])
        left -= held[name]
    return held


def _joined(texts: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"".join(texts), dtype=np.uint8)


def _too_small(data: DataConfig, total: int) -> ValueError:
    return ValueError(
        f"data.path = {data.path!r}: {total} bytes are too few for data.sequence_length = "
        f"{data.sequence_length} (training text needs two sequences, held-out text one byte more than one); "
        "give more text or shorter sequences"
    )
