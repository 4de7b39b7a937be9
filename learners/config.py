"""The recipe's [data] and [inner] tables, and the parameters to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from outer.config import Section, Table

SOURCES_MOST = 100  # of a mixture


@dataclass(frozen=True)
class WarmStart:
    """A file or folder of parameters to start from, and its digest (learners/training/weights.py)."""

    path: str
    digest: str


class CorpusConfig(Section):
    """One of several corpora, by name."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="by which figures and errors name it")
    kind: Literal["bytes", "tokens"] = Field("bytes", description="as data.kind")
    path: str | None = Field(None, description="as data.path")


class SourceConfig(CorpusConfig):
    """One of several corpora that samples are drawn from."""

    weight: NonNegativeFloat = Field(1.0, description="its share of the samples, relative to the others'")


def once(field: str, corpora: Sequence[CorpusConfig]) -> None:
    """Raises ValueError if two have the same name."""
    names = [corpus.name for corpus in corpora]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{field} names {', '.join(doubled)} more than once; give each a name of its own")


class DataConfig(Section):
    """Where the samples come from and how text is cut into samples."""

    kind: Literal["bytes", "tokens"] = Field(
        "bytes", description="tokens: shards that `diloco data prepare` has made; bytes: those of text files"
    )
    path: str | None = Field(
        None,
        description="a folder or a glob of text files; default: the Python standard library's own sources; of kind "
        "tokens: a prepared folder",
    )
    mixture: Annotated[tuple[SourceConfig, ...], Field(min_length=1, max_length=SOURCES_MOST)] | None = Field(
        None, description="corpora of one vocabulary that samples are drawn from by weight, in place of kind and path"
    )
    digest: str | None = Field(
        None, description="of the shards' manifest; filled in when the recipe is resolved, and refused where it differs"
    )
    held_out: float = Field(
        0.05, gt=0.0, lt=1.0, description="share of the text kept for evaluation; shards have theirs from prepare"
    )
    sequence_length: PositiveInt = Field(96, description="tokens per sample")
    span_steps: PositiveInt = Field(16, description="the fewest steps' samples that a learner is lent at a time")
    ahead_s: NonNegativeFloat = Field(
        3600.0, description="seconds of samples that a learner holds ahead, so that it steps on while it has no syncer"
    )
    set_aside: NonNegativeInt = Field(
        64,
        description="how often, at most, a run sets aside the samples on which two learners have ended, such as those "
        "of a damaged file among many that nobody has read",
    )

    def of(self, corpus: CorpusConfig) -> DataConfig:
        """Return these settings for this corpus alone."""
        return self.model_copy(update={"kind": corpus.kind, "path": corpus.path, "mixture": None, "digest": None})

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.mixture is None:
            return self
        if self.path is not None or self.kind != "bytes":
            raise ValueError("each source of the mixture has its own kind and path; leave out those of [data]")
        once("mixture", self.mixture)
        if not any(source.weight for source in self.mixture):
            raise ValueError("mixture has no weight above 0; give at least one source a weight")
        return self


class InnerConfig(Section):
    """The inner optimizer: any optax transformation by name; its state never leaves the learner."""

    optimizer: str = Field(
        "adamw", description="name of a function in optax that returns a GradientTransformation; or muon"
    )
    lr: PositiveFloat = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="shape of the learning rate over global progress t / T"
    )
    warmup: float = Field(0.02, ge=0.0, lt=1.0, description="share of the run in which the rate rises to its peak")
    final: float = Field(0.1, ge=0.0, le=1.0, description="the last learning rate, as a share of the peak")
    parameters: Literal["task", "float32", "bfloat16"] = Field(
        "task",
        description="dtype of the parameters that the optimizer steps and of its moments: float32 gives master "
        "parameters to a model of narrower ones; task: as the task's init makes them",
    )
    compute: Literal["task", "float32", "bfloat16"] = Field(
        "task",
        description="dtype to which parameters and the batch's floats are cast for the loss and its gradients; task: "
        "parameters as the task's init makes them, batches as they are",
    )
    microbatches: PositiveInt = Field(
        1, description="equal parts of a step's batch; their gradients are averaged in float32, then clipped"
    )
    clip_norm: NonNegativeFloat = Field(1.0, description="gradients are scaled down to this global norm; 0 = never")
    options: Table = Field({}, description="further arguments of the optimizer")
