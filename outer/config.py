"""The recipe's [sync] and [outer] tables: how fragments are exchanged, merged and applied.

The TOML uses the paper's letters (`P`, `H`, `tau`), the code uses words.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

SECONDS_MAX = 1e9  # 32 years: clocks and locks of a process take no more
WHOLE_MAX = 2**63 - 1


def _writable(value: Any, place: str = "") -> Any:
    """The value of a table of the user's own. Raises ValueError for what a recipe cannot hold, as TOML and JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _writable(inner, f"{place}.{key}".strip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _writable(inner, f"{place}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} = {value} is not finite")
    elif isinstance(value, int) and abs(value) > WHOLE_MAX:
        raise ValueError(f"{place} = {value} has more than 64 bits")
    elif not isinstance(value, (str, int, float)):
        raise ValueError(f"{place} is a {type(value).__name__}, which no recipe keeps: write it as text")
    return value


Table = Annotated[dict[str, Any], AfterValidator(_writable)]


class Section(BaseModel):
    """One table of the recipe. Unknown keys are errors; values are immutable after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        """Refuse numbers that the schema takes and no process can use."""
        for name, info in type(self).model_fields.items():
            value, key = getattr(self, name), info.alias or name
            if type(value) is int and value > WHOLE_MAX:
                raise ValueError(f"{key} = {value} has more than 64 bits")
            if type(value) is float and name.endswith("_s") and value > SECONDS_MAX:
                raise ValueError(f"{key} = {value:g} is more than {SECONDS_MAX:g} seconds, and no clock waits so long")
        return self


class SyncConfig(Section):
    """The exchange of fragments between learners and syncer (paper sections 1 to 3)."""

    fragments: PositiveInt | None = Field(
        None, alias="P", description="fragments of the model; default: min(24, H, number of tensors)"
    )
    round_steps: PositiveInt = Field(24, alias="H", description="syncer steps between two syncs of a fragment, a round")
    fragmentation: Literal["balanced", "tensor", "layer"] = Field(
        "balanced",
        description="how tensors are dealt into fragments: balanced by size; tensor: by turns; layer: whole layers by "
        "turns, and what is in no layer into the first fragment",
    )
    split: bool = Field(
        False,
        description="cut tensors above 4/3 of the mean fragment by rows into pieces, so that fragments have about one "
        "size; a merge rule then sees each piece as a vector of its own",
    )
    overlap_steps: NonNegativeInt = Field(2, alias="tau", description="steps that an update should be old at most")
    quorum: PositiveInt | Literal["all"] = Field(1, description="K, learners that a commit needs")
    grace: NonNegativeFloat | Literal["adaptive", "infinite"] = Field(
        "adaptive", description="how long to wait for more than K: adaptive, infinite, or seconds"
    )
    gamma: float = Field(0.5, ge=0.0, lt=1.0, description="share of the slack that adaptive grace may use")
    smoothing: float = Field(0.1, gt=0.0, le=1.0, description="weight of the newest in averages of times")
    participants: Literal["eligible", "reported"] = Field(
        "eligible",
        description="which learners are read: all live ones with a usable base, or only those that reported",
    )
    pacing: Literal["clock", "quorum"] = Field(
        "clock",
        description="clock: at most one syncer step per median step time; quorum: the paper's literal loop",
    )
    overlap: Literal["free", "strict"] = Field(
        "free",
        description="free: as soon as it is there; strict: a fragment read at step s is adopted exactly after s + tau",
    )
    weights: Literal["paper", "tokens", "equal"] = Field(
        "paper", description="what a contribution weighs in a merge: paper (tokens^2 / steps), tokens, or equal"
    )
    adopt: Literal["overwrite", "rebase"] = Field(
        "overwrite",
        description="overwrite: a version replaces the fragment; rebase: what the learner did since the read is added",
    )
    base_window: int = Field(
        0,
        ge=0,
        le=16,
        description="rounds that a contribution's base may be behind; beyond 0, fp32 is sent as fp32_delta",
    )
    codec: Literal["fp32", "fp32_delta", "bf16", "int8", "fp4"] = Field(
        "fp32", description="number format of contributions on the wire"
    )
    downlink: Literal["fp32", "bf16", "int8", "fp4"] = Field(
        "fp32",
        description="number format of the differences between versions on their way to the learners; fp32: versions "
        "travel whole and exact",
    )
    error_feedback: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="share of what rounding left out of a merged contribution that the learner adds to its next one",
    )
    adaptive: bool = Field(
        False,
        description="a learner whose answers take longer than an eighth of a round sends fewer bits, until its link is "
        "faster again",
    )
    read_timeout_s: PositiveFloat = Field(2.0, description="deadline for a learner's answer to a read")
    transfer_s: PositiveFloat = Field(60.0, description="deadline for the transfer of a fragment, or of all of them")
    recover: Literal["peer", "syncer"] = Field(
        "peer",
        description="where a joiner's state comes from: a peer, inner optimizer included, or the syncer's fragments",
    )
    join_s: PositiveFloat = Field(
        30.0, description="a peer's state that takes longer than this, and longer than H syncer steps, is too old"
    )
    drain_s: PositiveFloat = Field(30.0, description="how long a learner that has to leave waits for its last merges")
    lease_s: PositiveFloat = Field(3.0, description="without progress for this long, a learner is left out of merges")
    lease_steps: PositiveFloat = Field(5.0, description="a lease lasts at least this many average steps")

    @model_validator(mode="before")
    @classmethod
    def _differences(cls, given: Any) -> Any:
        """Make contributions differences where they may have grown from an older version than the newest."""
        if isinstance(given, dict) and given.get("base_window") and given.get("codec", "fp32") == "fp32":
            return given | {"codec": "fp32_delta"}
        return given

    @model_validator(mode="after")
    def _fits_the_round(self) -> Self:
        if self.fragments is not None and self.fragments > self.round_steps:
            raise ValueError(
                f"P = {self.fragments} fragments need a round of at least as many steps; H = {self.round_steps}"
            )
        if self.overlap_steps >= self.round_steps:
            raise ValueError(f"tau = {self.overlap_steps} must be below H = {self.round_steps}")
        if self.base_window and self.overlap == "strict":
            raise ValueError('base_window needs overlap = "free": in strict overlap no base is late')
        if self.adaptive and (self.overlap == "strict" or self.grace == "infinite"):
            raise ValueError('adaptive needs overlap = "free" and a grace that ends: else every answer is waited for')
        if self.error_feedback and self.codec.startswith("fp32"):
            raise ValueError(
                f'error_feedback = {self.error_feedback:g}: codec = "{self.codec}" leaves nothing out; give another'
            )
        return self

    @property
    def decay(self) -> float:
        """The share kept of what a merged contribution left out; 0 where learners do not keep it."""
        return self.error_feedback or 0.0

    @property
    def hurries(self) -> bool:
        """Whether a commit that has its quorum need not wait for everyone."""
        return self.overlap == "free" and self.grace != "infinite"

    @property
    def needs_notice(self) -> bool:
        """Whether a learner adopts a version only once it knows which of its own reads is in it."""
        return self.adopt == "rebase" or self.decay > 0.0


class OuterConfig(Section):
    """The outer optimizer: any optax transformation, applied per fragment to the merged outer gradient."""

    optimizer: str = Field(
        "sgd",
        description="name of an optax function that returns a GradientTransformation, "
        "or the `package.module:function` of your own",
    )
    lr: PositiveFloat = Field(0.7, description="learning rate of the outer optimizer")
    momentum: float = Field(0.5, ge=0.0, lt=1.0, description="Nesterov momentum, if the optimizer has momentum")
    options: Table = Field({}, description="further arguments of the optimizer")
    merge: str = Field(
        "rda",
        description="merge rule for tensors that no pattern of the task matches: rda, avg, median, clip, or the "
        "`package.module:function` of your own",
    )
    granularity: Literal["tensor", "row", "fragment"] = Field(
        "tensor", description="what every merge rule but avg treats as one vector"
    )

    @property
    def plain_sgd(self) -> bool:
        """Whether the merge kernel takes the outer step itself, in the pass that merges."""
        return self.optimizer == "sgd" and set(self.options) <= {"nesterov"}
