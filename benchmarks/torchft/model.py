"""The built-in decoder in PyTorch: learners/training/models/decoder.py, shape for shape; and its text.

Pre-norm, rotary positions, SwiGLU, tied embedding, no biases. Runs in torchft's environment, so it imports nothing of
this project.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256  # every byte


class Norm(nn.RMSNorm):
    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, hidden = heads, -(-width // 3) * 8
        self.attention_norm, self.mlp_norm = Norm(width), Norm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        seen, split = self.attention_norm(x), (batch, length, self.heads, width // self.heads)
        query, key, value = (each(seen).view(split).transpose(1, 2) for each in (self.query, self.key, self.value))
        query, key = _rotate(query, angles), _rotate(key, angles)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        seen = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(seen)) * self.up(seen))


class Transformer(nn.Module):
    """`ends` holds what is no block: embedding and last norm; so `ends` and the blocks are the fragments."""

    def __init__(self, layers: int, width: int, heads: int = 4) -> None:
        super().__init__()
        self.ends = nn.ModuleDict({"embed": nn.Embedding(VOCABULARY, width), "norm": Norm(width)})
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self._features = width // heads
        nn.init.normal_(self.ends["embed"].weight, std=width**-0.5)

    @property
    def fragments(self) -> list[nn.Module]:
        return [self.ends, *self.blocks]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean nats per byte of int64[batch, length + 1]."""
        weight = self.ends["embed"].weight
        x = self.ends["embed"](tokens[:, :-1])
        angles = _angles(x.shape[1], self._features)
        for block in self.blocks:
            x = block(x, angles)
        logits = self.ends["norm"](x) @ weight.T
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def text() -> torch.Tensor:
    """The sources of Python's standard library, its top folder, as one uint8 vector."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def batch(data: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """int64[count, length + 1] from random places."""
    starts = torch.randint(len(data) - length, (count, 1), generator=generator)
    return data[starts + torch.arange(length + 1)].long()


def _angles(length: int, features: int) -> torch.Tensor:
    rates = 10000.0 ** (-torch.arange(0, features, 2) / features)
    return torch.outer(torch.arange(length).float(), rates)


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
