"""The recipe's [sync] and [outer] sections: how fragments are exchanged, merged and applied.

The paper's letters stand in the TOML (`P`, `H`, `tau`), words in the code.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)


class Section(BaseModel):
    """One table of the recipe: unknown keys are refused, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class SyncConfig(Section):
    """The exchange of fragments between learners and syncer (paper sections 1 to 3)."""

    fragments: PositiveInt | None = Field(
        None, alias="P", description="P, fragments; default min(24, H, number of tensors)"
    )
    round_steps: PositiveInt = Field(24, alias="H", description="H, syncer steps between two syncs of a fragment")
    overlap_steps: NonNegativeInt = Field(2, alias="tau", description="tau, steps a fragment may be in flight")
    quorum: PositiveInt | Literal["all"] = Field(1, description="K, learners without whom nothing commits")
    grace: NonNegativeFloat | Literal["adaptive", "infinite"] = Field(
        "adaptive", description="how long to wait for more than K: adaptive, infinite, or seconds"
    )
    gamma: float = Field(0.5, ge=0.0, lt=1.0, description="share of the slack that adaptive grace may use")
    smoothing: float = Field(0.1, gt=0.0, le=1.0, description="weight of the newest sample in moving averages")
    participants: Literal["eligible", "reported"] = Field(
        "eligible",
        description="who is read: every live learner with a current base, or only those that reported",
    )
    pacing: Literal["clock", "quorum"] = Field(
        "clock",
        description="clock: at most one syncer step per median step time; quorum: the paper's literal loop",
    )
    overlap: Literal["free", "strict"] = Field(
        "free",
        description="strict: a fragment read at step s is adopted exactly after s + tau (lock-step studies)",
    )
    adopt: Literal["overwrite", "rebase", "mix"] = Field("overwrite", description="what a learner does on arrival")
    alpha: float = Field(0.0, ge=0.0, le=1.0, description="share of the local value kept by adopt = mix")
    codec: Literal["fp32", "bf16"] = Field("fp32", description="number format of contributions on the wire")
    read_timeout_s: PositiveFloat = Field(2.0, description="deadline for a learner's answer to a read")
    transfer_s: PositiveFloat = Field(60.0, description="deadline for the transfer of a fragment, or of all of them")
    recover: Literal["peer", "syncer"] = Field(
        "peer",
        description="where a joiner's state comes from: a peer, inner optimizer included, or the syncer's snapshot",
    )
    join_s: PositiveFloat = Field(
        30.0, description="a peer's state that took longer than this, and than H syncer steps, is too old to start from"
    )
    drain_s: PositiveFloat = Field(30.0, description="how long a learner that is told to leave waits for its merges")
    lease_s: PositiveFloat = Field(3.0, description="shortest progress lease of a stepping learner")
    lease_steps: PositiveFloat = Field(5.0, description="a stepping lease lasts at least this many average steps")

    @model_validator(mode="after")
    def _fits_the_round(self) -> Self:
        if self.fragments is not None and self.fragments > self.round_steps:
            raise ValueError(
                f"P = {self.fragments} fragments need a round of at least as many steps; H = {self.round_steps}"
            )
        if self.overlap_steps >= self.round_steps:
            raise ValueError(f"tau = {self.overlap_steps} must be below H = {self.round_steps}")
        if self.alpha and self.adopt != "mix":
            raise ValueError('alpha is used by adopt = "mix" only')
        return self


class OuterConfig(Section):
    """The outer optimizer: any optax transformation by name, applied per fragment to the merged outer gradient."""

    optimizer: str = Field("sgd", description="name of a function in optax that returns a GradientTransformation")
    lr: PositiveFloat = 0.7
    momentum: float = Field(0.5, ge=0.0, lt=1.0, description="Nesterov momentum, where the optimizer has one")
    options: dict[str, Any] = Field(default_factory=dict, description="further arguments of the optimizer")
    merge: Literal["rda", "avg"] = Field("rda", description="rule for tensors not named by the task's own patterns")
    granularity: Literal["tensor", "row", "column", "fragment"] = Field(
        "tensor", description="what counts as one vector in radial-directional averaging"
    )
