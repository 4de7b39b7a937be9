"""A corpus of token shards that `diloco data prepare` has made, memory-mapped, and the endless order of its samples.

Sample i follows from the manifest's digest and the seed alone. What a sample reads is checked against the manifest's
block sums when this process first reads it, so a changed shard is named before it is trained on, and no step waits
for a whole shard.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from learners.config import DataConfig
from learners.training.data.byte_corpus import stride
from learners.training.data.manifest import BLOCK_BYTES, Manifest, Shard
from learners.training.data.mixture import Permutation
from learners.training.data.shard_folder import ShardFolder

SHARDS_OPEN_MAX = 256
BLOCK_SAMPLES = 1024
Tokens = NDArray[Any]  # uint8, uint16 or uint32


def check(data: DataConfig) -> None:
    """Check that every shard is there in its size. Raises ValueError, naming the field, the shards and the fix."""
    _checked(data)


class TokenCorpus:
    """Training and held-out tokens of the folder data.path; implements mixture.Corpus.

    `digest`: SHA-256 of the manifest. Raises ValueError as `check` does; a shard that has changed since is named when
    a sample reads it.
    """

    def __init__(self, data: DataConfig, seed: int) -> None:
        self._folder = _checked(data)
        self.manifest, self.digest = self._folder.manifest, self._folder.digest
        self._length = length = data.sequence_length
        self._seed = seed
        where = f"data.path = {data.path!r}"
        self.train = TokenStream(where, self._folder, self.manifest, self.manifest.train)
        self.held_out = TokenStream(where, self._folder, self.manifest, self.manifest.held_out)
        self.windows = (self.train.tokens - length) // length  # the samples of one epoch: whole windows at every phase
        self._held_out_windows = (self.held_out.tokens - 1) // length
        self._blocks: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._epochs: dict[int, tuple[int, Permutation]] = {}

    def batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) of the training tokens, [count, L + 1].

        Each epoch cuts the tokens into windows of L at its own phase and takes each window once, in its own order. The
        last token of a sample is only a target; the next window begins with it. A window may cross documents, whose
        end has its own token, and shards.
        """
        offsets = np.empty(count, dtype=np.int64)
        row = 0
        while row < count:
            epoch, index = divmod(start + row, self.windows)
            block, first = divmod(index, BLOCK_SAMPLES)
            found = self._block(epoch, block)[first : first + count - row]
            offsets[row : row + len(found)] = found
            row += len(found)
        return self.train.read(offsets, self._length + 1)

    def held_out_batch(self, start: int, count: int) -> Tokens:
        """Samples [start, start + count) for evaluation, [count, L + 1], in a strided order as of bytes."""
        windows = self._held_out_windows
        places = np.arange(start, start + count, dtype=np.int64) % windows
        return self.held_out.read(places * stride(windows) % windows * self._length, self._length + 1)

    def _block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Where samples [block, block + 1) * BLOCK_SAMPLES of an epoch begin, as far as the epoch goes.

        Together, since steps take neighbours, and a batch's few at a time cost many times as much.
        """
        if (epoch, block) not in self._blocks:
            phase, order = self._epoch(epoch)
            begin = block * BLOCK_SAMPLES
            places = np.arange(begin, min(begin + BLOCK_SAMPLES, self.windows), dtype=np.int64)
            self._blocks = dict(list(self._blocks.items())[-3:])
            self._blocks[epoch, block] = phase + order(places) * self._length
        return self._blocks[epoch, block]

    def _epoch(self, epoch: int) -> tuple[int, Permutation]:
        """The phase in tokens and the order of windows."""
        if epoch not in self._epochs:
            key = f"{self.digest} {self._seed} {epoch} {self._length}".encode()
            phase = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % self._length
            self._epochs = dict(list(self._epochs.items())[-1:])  # the one before, whose samples may still be asked for
            self._epochs[epoch] = (phase, Permutation(self.windows, key))
        return self._epochs[epoch]


class TokenStream:
    """Shards as one array. `tokens`: of all. For one thread at a time."""

    def __init__(self, where: str, folder: ShardFolder, manifest: Manifest, shards: Sequence[Shard]) -> None:
        self._where, self._folder, self._manifest, self._shards = where, folder, manifest, shards
        self._ends = np.cumsum([shard.tokens for shard in shards], dtype=np.int64)
        self.tokens = int(self._ends[-1]) if len(shards) else 0
        self._open: OrderedDict[int, tuple[Tokens, NDArray[np.uint8]]] = OrderedDict()
        self._sums: dict[int, NDArray[np.uint64]] = {}
        self._checked: dict[int, bytearray] = {}  # a byte for each block
        self._all_allowed = np.iinfo(manifest.dtype).max < manifest.vocabulary

    def read(self, offsets: NDArray[np.int64], count: int) -> Tokens:
        """Tokens [offset, offset + count) of each offset, [len(offsets), count]. Raises ValueError with the shard."""
        found = np.empty((len(offsets), count), dtype=self._manifest.dtype)
        places = np.searchsorted(self._ends, offsets, side="right")
        for row, (offset, place) in enumerate(zip(offsets.tolist(), places.tolist(), strict=True)):
            taken = 0
            while taken < count:
                end = int(self._ends[place])
                begin = offset + taken - (end - self._shards[place].tokens)
                part = min(count - taken, end - offset - taken)
                self._copy(place, begin, found[row, taken : taken + part])
                taken, place = taken + part, place + 1
        return found

    def _copy(self, place: int, begin: int, into: Tokens) -> None:
        tokens, content = self._mapped(place)
        size = self._manifest.itemsize
        checked = self._checked[place]
        for block in range(begin * size // BLOCK_BYTES, ((begin + len(into)) * size - 1) // BLOCK_BYTES + 1):
            if not checked[block]:
                self._verify(place, block, tokens, content)
                checked[block] = 1
        into[:] = tokens[begin : begin + len(into)]

    def _mapped(self, place: int) -> tuple[Tokens, NDArray[np.uint8]]:
        if place in self._open:
            self._open.move_to_end(place)
            return self._open[place]
        shard = self._shards[place]
        if place not in self._sums:
            sums = self._content(shard.sums)
            if hashlib.sha256(sums).hexdigest() != shard.sums_sha256:
                raise self._refused(f"{shard.sums} has changed since it was prepared")
            self._sums[place] = np.frombuffer(sums, dtype="<u8")
            self._checked[place] = bytearray(len(self._sums[place]))
        try:
            file = self._folder.file(shard.name)
            content: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise self._refused(f"shard {shard.name} cannot be read: {error}") from error
        if content.nbytes != shard.tokens * self._manifest.itemsize:
            raise self._refused(f"shard {shard.name} has changed its size")
        dtype = np.dtype(self._manifest.dtype).newbyteorder("<")
        self._open[place] = content.view(dtype), content
        if len(self._open) > SHARDS_OPEN_MAX:
            self._open.popitem(last=False)
        return self._open[place]

    def _verify(self, place: int, block: int, tokens: Tokens, content: NDArray[np.uint8]) -> None:
        begin = block * BLOCK_BYTES
        part = content[begin : begin + BLOCK_BYTES]
        name = self._shards[place].name
        if xxhash.xxh3_64_intdigest(part.data) != int(self._sums[place][block]):
            raise self._refused(f"shard {name} has changed since it was prepared, in the 64 KiB from byte {begin:,}")
        size = self._manifest.itemsize
        if (
            not self._all_allowed
            and int(tokens[begin // size : (begin + BLOCK_BYTES) // size].max()) >= self._manifest.vocabulary
        ):
            raise self._refused(f"shard {name} has tokens outside the vocabulary of {self._manifest.vocabulary:,}")

    def _content(self, name: str) -> bytes:
        try:
            return self._folder.file(name).read_bytes()
        except OSError as error:
            raise self._refused(f"{name} cannot be read: {error.strerror or error}") from error

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"{self._where}: {what}; restore it: the manifest has every shard's SHA-256")


def _checked(data: DataConfig) -> ShardFolder:
    folder = ShardFolder(data.path)
    manifest, digest = folder.manifest, folder.digest
    if data.digest not in (None, digest):
        raise ValueError(
            f"data.path = {data.path!r}: holds shards of digest {digest}, and data.digest is {data.digest}; give the "
            "folder that the run began with, or start a new run under another name"
        )
    try:
        found = folder.problems()
    except OSError as error:
        raise ValueError(f"data.path = {data.path!r}: cannot be listed ({error}); give it again when it can") from error
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ValueError(f"data.path = {data.path!r}: {', '.join(found[:3])}{more}; copy or prepare the folder again")
    train, held_out = (sum(shard.tokens for shard in shards) for shards in (manifest.train, manifest.held_out))
    if train < 2 * data.sequence_length or held_out < data.sequence_length + 1:
        raise ValueError(
            f"data.path = {data.path!r}: {train:,} tokens, and {held_out:,} held out, are too few for "
            f"data.sequence_length = {data.sequence_length} (training needs two sequences, held-out tokens one more "
            "than one); prepare more text, with a larger --held-out, or give shorter sequences"
        )
    return folder
