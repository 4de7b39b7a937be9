"""The sizes and options of the decoder, without JAX."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from outer.config import Section

LOCAL_LAYERS = 5  # in a row that have `local_theta`, before each that has `rope_theta`


class Architecture(NamedTuple):
    """What the models of a family have that those of others have not."""

    qk_norm: Literal["", "head", "all"] = ""  # queries and keys are normalised, each head or all heads together
    qkv_bias: bool = False
    norms: Literal["before", "after", "both"] = "before"  # where a branch has one
    gelu: bool = False  # inside an MLP, else SiLU
    scaled: bool = False  # embeddings, by the root of the width
    cap: float | None = None  # what the logits of attention approach at most
    output_cap: float | None = None  # those of the output
    local_theta: float | None = None  # a base of rotary wavelengths that most layers have in place of `rope_theta`


# By the model_type of transformers.
ARCHITECTURES = {
    "llama": Architecture(),
    "qwen2": Architecture(qkv_bias=True),
    "qwen3": Architecture(qk_norm="head"),
    "olmo2": Architecture(qk_norm="all", norms="after"),
    "gemma2": Architecture(norms="both", gelu=True, scaled=True, cap=50.0, output_cap=30.0),
    "gemma3_text": Architecture(qk_norm="head", norms="both", gelu=True, scaled=True, local_theta=10_000.0),
}


class DecoderConfig(Section):
    """The recipe's [model] table for the decoder (learners/training/models/causal_lm.py)."""

    architecture: Literal["llama", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3_text"] = Field(
        "llama", description="the family of models whose blocks it has"
    )
    layers: PositiveInt = Field(3, description="blocks of attention and MLP")
    width: PositiveInt = Field(96, description="features per token")
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
        if wrong:
            raise ValueError("; and ".join(wrong))
        return self

    @property
    def family(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

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
