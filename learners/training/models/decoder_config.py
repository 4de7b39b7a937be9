"""The sizes and options of the decoder, without JAX."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from outer.config import Section


class DecoderConfig(Section):
    """The recipe's [model] table for the decoder (learners/training/models/causal_lm.py)."""

    layers: PositiveInt = Field(4, description="blocks of attention and MLP")
    width: PositiveInt = Field(128, description="features per token")
    heads: PositiveInt = Field(4, description="of queries")
    kv_heads: PositiveInt | None = Field(None, description="of keys and values, a divisor of heads; default: heads")
    head_width: PositiveInt | None = Field(None, description="features of a head, even; default: width / heads")
    hidden: PositiveInt | None = Field(None, description="features inside an MLP; default: 8/3 width, in whole eights")
    vocabulary: NonNegativeInt = Field(0, description="tokens that the model knows; 0: as many as the data has")
    rope_theta: PositiveFloat = Field(10_000.0, description="base of the rotary wavelengths")
    rope_scaling: tuple[()] | tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveInt] = Field(
        (), description="as Llama 3's: factor, low and high frequency factor, positions before scaling"
    )
    norm_eps: PositiveFloat = Field(1e-6, description="added to the mean square in each norm")
    qk_norm: bool = Field(False, description="normalise queries and keys")
    qkv_bias: bool = Field(False, description="add biases to queries, keys and values; not with qk_norm")
    tied: bool = Field(True, description="one matrix for embedding and output")
    remat: bool = Field(False, description="compute a layer's activations again for the gradient, to save memory")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        wrong = []
        if self.head_width is None and self.width % (2 * self.heads):
            fitting = -(-self.width // (2 * self.heads)) * 2 * self.heads
            wrong.append(
                f"width = {self.width} with heads = {self.heads}: rotary positions rotate pairs of a head's features; "
                f"try width = {fitting}, or give head_width"
            )
        if self.head_width is not None and self.head_width % 2:
            wrong.append(f"head_width = {self.head_width}: rotary positions rotate pairs; give an even number")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            wrong.append(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}; give a divisor")
        if self.rope_scaling and self.rope_scaling[1] >= self.rope_scaling[2]:
            wrong.append("rope_scaling: the low frequency factor is not below the high one; exchange them")
        if self.qkv_bias and self.qk_norm:
            wrong.append("qkv_bias = true with qk_norm = true; leave one out")
        if wrong:
            raise ValueError("; and ".join(wrong))
        return self

    @property
    def features(self) -> int:
        """The features of a head."""
        return self.head_width or self.width // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def inside(self) -> int:
        """Features inside an MLP."""
        return self.hidden or -(-self.width // 3) * 8

    def settled(self, vocabulary: int) -> dict[str, Any]:
        """Every field, with the numbers that those left out stand for; `vocabulary`: the data's."""
        filled = {"kv_heads": self.key_heads, "head_width": self.features, "hidden": self.inside}
        return self.model_dump(mode="json") | filled | {"vocabulary": self.vocabulary or vocabulary}
