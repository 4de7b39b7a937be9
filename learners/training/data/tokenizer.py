"""Text to tokens and back: bytes as they are, or a tokenizer.json of the library tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")  # names of an end of document


class Coder(Protocol):
    """`vocabulary`: tokens are below it. `end`: the token after a document."""

    vocabulary: int
    end: int

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The tokens of each text, without special ones."""
        ...

    def decode(self, tokens: NDArray[Any]) -> bytes:
        """The text of tokens [n], without special ones."""
        ...


class ByteCoder:
    """Tokens are the bytes of UTF-8. A document ends with a NUL, which text does not have."""

    vocabulary, end = 256, 0

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]

    def decode(self, tokens: NDArray[Any]) -> bytes:
        text: bytes = tokens[tokens != self.end].astype(np.uint8).tobytes()
        return text


class FileCoder:
    """A tokenizer.json. Raises ValueError where it cannot be used.

    `end`: the name of the token after a document; None: the first of ENDS that the vocabulary has. A special token's
    name in a text is encoded as text.
    """

    def __init__(self, path: Path, end: str | None = None) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(f"{path} needs the library tokenizers; pip install 'decoupled-diloco[data]'") from error
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
        return [np.asarray(one.ids, dtype=np.int64) for one in found]

    def decode(self, tokens: NDArray[Any]) -> bytes:
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        return text.encode()
