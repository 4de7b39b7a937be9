"""A decoder with a mixture of experts in place of each MLP: a router sends each token to its best, and none is dropped.

Every expert computes every token, and the router's shares, zero for most, weigh the results: the arithmetic of
experts / chosen MLPs, in three products. Gates are [width, experts * hidden] and outputs [hidden, experts * width]: a
column belongs to one expert.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from learners.training.models import decoder, layers
from learners.training.models.causal_lm import CausalLM
from learners.training.models.decoder import cross_entropy
from learners.training.models.decoder_config import DecoderConfig
from learners.training.models.layers import Draw, Params


class MixtureConfig(DecoderConfig):
    """The recipe's [model] table."""

    architecture: Literal["llama", "qwen2", "qwen3"] = Field("llama", description="whose attention it has")
    experts: PositiveInt = Field(4, description="MLPs of a layer, each of `hidden`")
    chosen: PositiveInt = Field(2, description="experts that a token goes to")
    balance: NonNegativeFloat = Field(0.01, description="weight of the load-balancing loss")
    router_z: NonNegativeFloat = Field(0.001, description="weight of the router's z-loss")

    @model_validator(mode="after")
    def _chosen_are_there(self) -> Self:
        if self.chosen > self.experts:
            raise ValueError(f"chosen = {self.chosen} of experts = {self.experts}; give at most as many")
        return self


class Routing(NamedTuple):
    """Statistics of one layer's router over a batch: float32 scalars."""

    balance: jax.Array  # experts * sum of load times mean probability, at least about 1 (arXiv 2101.03961, section 2.2)
    z: jax.Array  # mean squared log of the sum of the router's exponentials (arXiv 2202.08906, section 2)
    load_max: jax.Array  # the busiest expert's share of the choices, relative to an even share: 1 is even
    load_min: jax.Array  # the least busy expert's


class MixtureLM(CausalLM):
    """The built-in decoder with experts."""

    kind = MixtureConfig
    config: MixtureConfig

    def init(self, rng: jax.Array) -> Params:
        config, residual = self.config, (2 * self.config.layers) ** -0.5
        dense, mlps = jax.random.split(rng)
        params, draw = decoder.init(dense, config, self.vocabulary), layers.matrices(mlps, 4 * config.layers)
        blocks = [
            block | {"mlp": mixture_init(draw, config.width, config.inside, config.experts, residual)}
            for block in params["blocks"]
        ]
        return params | {"blocks": blocks}

    def _routed(self, params: Params, tokens: jax.Array) -> tuple[jax.Array, list[Routing]]:
        """The features, and each layer's routing."""
        config = self.config
        angles = layers.rotary(tokens.shape[1], config.features, config.rope_theta, config.rope_scaling)
        layer = partial(_layer, config=config)
        layer = jax.checkpoint(layer) if config.remat else layer
        x, routings = params["embed"][tokens], []
        for block in params["blocks"]:
            x, routing = layer(block, x, angles)
            routings.append(routing)
        return layers.rms_norm(x, params["norm"], config.norm_eps), routings

    def loss(self, params: Params, batch: jax.Array, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Nats per token and the weighed balancing losses.

        The auxiliary scalars are the parts of the sum, and the loads of the busiest and the least busy expert of any
        layer, relative to an even load.
        """
        tokens = batch.astype(jnp.int32)
        x, routings = self._routed(params, tokens[:, :-1])
        nats = cross_entropy(x, decoder.head(params), tokens[:, 1:])
        each = Routing(*(jnp.stack(values) for values in zip(*routings, strict=True)))
        balance, z = jnp.mean(each.balance), jnp.mean(each.z)
        aux = {
            "cross_entropy": nats,
            "balance": balance,
            "router_z": z,
            "expert_load_max": jnp.max(each.load_max),
            "expert_load_min": jnp.min(each.load_min),
        }
        return nats + self.config.balance * balance + self.config.router_z * z, aux

    def held_out_loss(self, params: Params, batch: jax.Array) -> jax.Array:
        """Mean nats per token alone, which compares with that of any other model."""
        cross_entropy: jax.Array = self.loss(params, batch, jax.random.key(0))[1]["cross_entropy"]
        return cross_entropy

    def sharding(self, mesh: Mesh) -> dict[str, PartitionSpec]:
        """The columns of experts are cut with those of all other matrices."""
        return decoder.sharding(jax.eval_shape(self.init, jax.random.key(0)), mesh, down=("batch", "model"))


def _layer(block: Params, x: jax.Array, angles: jax.Array, config: MixtureConfig) -> tuple[jax.Array, Routing]:
    x = x + layers.attention(block["attention"], x, config.heads, config.norm_eps, angles)
    y, routing = mixture(block["mlp"], x, config.chosen, config.norm_eps)
    return x + y, routing


def mixture_init(draw: Draw, width: int, hidden: int, experts: int, residual: float) -> Params:
    """Parameters of `mixture`; draws four matrices."""
    return {
        "norm": jnp.ones(width),
        "router": draw(width, experts),
        "gate": draw(width, experts * hidden),
        "up": draw(width, experts * hidden),
        "down": draw(hidden, experts * width, residual),
    }


def mixture(params: Params, x: jax.Array, chosen: int, eps: float) -> tuple[jax.Array, Routing]:
    """The `chosen` best experts of each token, pre-norm: [batch, length, width] in and out; and what was routed.

    With several, their probabilities are scaled to a sum of 1. With one, its probability is its share, since the router
    would have no gradient otherwise. The router is computed in float32.
    """
    (batch, length, width), experts = x.shape, params["router"].shape[1]
    x = layers.rms_norm(x, params["norm"], eps)
    scores = jnp.matmul(x.astype(jnp.float32), params["router"].astype(jnp.float32))
    probabilities = jax.nn.softmax(scores)
    best, which = jax.lax.top_k(probabilities, chosen)
    if chosen > 1:
        best = best / best.sum(axis=-1, keepdims=True)
    picked = jax.nn.one_hot(which, experts)  # [batch, length, chosen, experts]
    shares = jnp.einsum("blk,blke->ble", best, picked).astype(x.dtype)
    hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
    weighed = hidden.reshape(batch, length, experts, -1) * shares[..., None]
    y = jnp.einsum("bleh,hew->blw", weighed, params["down"].reshape(-1, experts, width))
    load = experts * jnp.mean(picked, axis=(0, 1, 2))  # of each expert, relative to an even share
    balance = jnp.sum(load * jnp.mean(probabilities, axis=(0, 1)))
    z = jnp.mean(jax.nn.logsumexp(scores, axis=-1) ** 2)
    return y, Routing(balance, z, load.max(), load.min())
