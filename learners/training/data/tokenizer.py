"""Text to tokens: bytes as they are, or a tokenizer.json of the library tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.training.data.byte_corpus import unusable

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")  # names of an end of document


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
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, np.int64) for each in found]


Coder = ByteCoder | FileCoder
