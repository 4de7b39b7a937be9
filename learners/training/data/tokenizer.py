"""Text to tokens: bytes as they are, or a tokenizer.json of the library tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.training.data.byte_corpus import unusable

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")  # names of an end of document

PIECE = 2**18  # characters of a text that are encoded together
OVERLAP = 2**12  # characters of two pieces; they are joined in the middle half
AGREED = 8  # tokens before and after the join that both pieces have


class ByteCoder:
    """Tokens are the bytes of UTF-8. A document ends with a NUL, which text does not have.

    `vocabulary`: tokens are below it. `end`: the token after a document.
    """

    vocabulary, end = 256, 0

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]


class FileCoder:
    """A tokenizer.json. Raises ValueError where it cannot be used.

    `end`: the name of the token after a document; None: the first of ENDS that the vocabulary has. A special token's
    name in a text is encoded as text.
    """

    def __init__(self, path: Path, end: str | None = None) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(f"{path} needs tokenizers; in the checkout: pip install -e '.[data]'") from error
        if why := unusable(path):
            raise ValueError(f"{path} {why}; give a file of the library tokenizers")
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path} is no tokenizer.json: {error}; give a file of the library tokenizers") from error
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        names: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(names.values()) + 1
        known = [name for name in (ENDS if end is None else (end,)) if name in names]
        if not known:
            said = "none of " + ", ".join(ENDS) if end is None else repr(end)
            raise ValueError(f"{path}: its vocabulary has {said}; name the token that ends a document: --end-token")
        self.end = names[known[0]]

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        short = [text for text in texts if len(text) <= PIECE]
        found = iter(self._tokenizer.encode_batch_fast(short, add_special_tokens=False))
        return [np.asarray(next(found).ids, np.int64) if len(text) <= PIECE else self._long(text) for text in texts]

    def _long(self, text: str) -> NDArray[np.int64]:
        """The tokens of a text that is encoded in pieces. They overlap, and are joined where they agree.

        So the marks that a tokenizer sets at the start of a text, and words that a piece cuts, do not come in. A text
        whose pieces agree nowhere is encoded whole.
        """
        parts, before = list[NDArray[np.int64]](), np.empty((0, 2), np.int64)
        for begin in range(0, len(text) - OVERLAP, PIECE - OVERLAP):
            encoding = self._tokenizer.encode(text[begin : begin + PIECE], add_special_tokens=False)
            starts = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)[:, 0] + begin
            piece = np.stack([starts, np.asarray(encoding.ids, np.int64)], axis=1)
            if begin:
                place = _agreed(before, piece, begin)
                if place is None:
                    return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
                parts.append(before[: place[0], 1])
                piece = piece[place[1] :]
            before = piece
        return np.concatenate([*parts, before[:, 1]])


Coder = ByteCoder | FileCoder


def _agreed(before: NDArray[np.int64], after: NDArray[np.int64], begin: int) -> tuple[int, int] | None:
    """Where two pieces have the same tokens: the number of a token of each, (start, token)[n]. None: nowhere.

    `begin`: where `after` begins. Best in a run of the same tokens, else at one.
    """
    low, high = np.searchsorted(before[:, 0], [begin + OVERLAP // 4, begin + OVERLAP * 3 // 4])
    for run in (AGREED, 0):
        for here in range(low, high):
            there = int(np.searchsorted(after[:, 0], before[here, 0]))
            around = before[max(0, here - run) : here + run + 1]
            if np.array_equal(around, after[max(0, there - run) : there + run + 1]):
                return here, there
    return None
