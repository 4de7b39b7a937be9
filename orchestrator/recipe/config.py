"""The recipe: one typed configuration for a whole run."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from learners.config import CorpusConfig, DataConfig, InnerConfig, WarmStart, once
from orchestrator.recipe.tpu_slices import GENERATIONS, slice_hosts
from outer.config import OuterConfig, Section, SyncConfig, Table

ON_RANKS = ("kill", "freeze", "slow", "straggle")  # strike any process of a learner, the others its rank 0
ON_SYNCER = ("kill", "freeze")  # can strike the syncer too
FaultKind = Literal["kill", "freeze", "slow", "straggle", "link", "corrupt", "non_finite", "wrong_config"]
SYNCER = "syncer"  # where a fault can strike, beside the learners
Point = Literal["received", "merging", "merged", "journaling", "journaled", "applied", "announced"]
SEED_MAX = 2**32 - 1  # of a larger one, JAX's keys are those of its last 32 bits
EVAL_SETS_MOST = 16
STANDBY_MOST = 4
LABEL = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"  # value of a node label, to Ray and to Kubernetes
NAME = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
TASK = "learners.training.models.causal_lm:CausalLM"


class PoolConfig(Section):
    """Learner units of one kind in one place."""

    name: str = Field(pattern=f"^{NAME}$", description="appears in the learners' names: learner-NAME-0")
    learners: PositiveInt = Field(1, description="learner units wanted from this pool at the start")
    min: NonNegativeInt = Field(0, description="the fewest that `diloco scale` accepts")
    max: PositiveInt | None = Field(
        None, description="the most that `diloco scale` accepts; a local Ray has room for twice `learners`"
    )
    opportunistic: bool = Field(
        False,
        description="take matching nodes while they are there, up to max, and let learners go with them, down to min",
    )
    region: str | None = Field(None, pattern=LABEL, description="only nodes with the label region = this")
    joined: bool = Field(
        False, description="the region is a Ray cluster of its own: `diloco join` there starts the pool's learners"
    )
    accelerator: str | None = Field(
        None, pattern=LABEL, description="only nodes with the label ray.io/accelerator-type = this, e.g. H100, TPU-V6E"
    )
    topology: str | None = Field(
        None,
        description="of a TPU slice, e.g. 2x4, or 4x4 on four hosts: one learner takes the whole slice, with a process "
        "on each host",
    )
    resources: dict[str, PositiveFloat] = Field(
        {"CPU": 1.0}, description="of each process of a learner: CPU, GPU, TPU or a resource of your own"
    )
    processes: PositiveInt = Field(
        1, description="of one learner unit: its ranks, one program over the devices of all; resources are each one's"
    )
    hosts: PositiveInt = Field(1, description="over which a learner's processes are spread, as many on each")
    standby: NonNegativeInt = Field(
        0,
        le=STANDBY_MOST,
        description="processes for each learner that have imported JAX and, on CPUs, compiled: one takes over at once "
        "when the learner dies, on CPUs when any of its pool on its node does",
    )
    batch_size: PositiveInt = Field(8, description="samples per step and learner")
    slowdown: float = Field(1.0, ge=1.0, description="makes every step this many times as long, for studies")
    devices: PositiveInt | None = Field(
        None,
        description="of each of a learner's processes, over which its step is spread; default: all accelerators that "
        "it sees, or one CPU",
    )
    model_parallel: PositiveInt = Field(
        1, description='devices that share one copy of the model, the mesh axis "model" of the task\'s sharding'
    )

    @property
    def accelerated(self) -> bool:
        return any(kind in self.resources for kind in ("GPU", "TPU"))

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, given: Any) -> Any:
        """A slice of several hosts says by itself how many there are, and what each has."""
        if not isinstance(given, dict) or not (hosts := slice_hosts(given.get("accelerator"), given.get("topology"))):
            return given
        chips = GENERATIONS[given["accelerator"]].host_chips(given["topology"])
        return {"hosts": hosts, "processes": hosts, "resources": {"TPU": chips}} | given

    @property
    def slice_hosts(self) -> int:
        """Hosts of the TPU slice that a learner takes whole; 0 where it lies on one host, or there is none."""
        return slice_hosts(self.accelerator, self.topology)

    @property
    def platform(self) -> Literal["cpu", "gpu", "tpu"]:
        """JAX's name for the devices that the resources ask for."""
        return "gpu" if "GPU" in self.resources else "tpu" if "TPU" in self.resources else "cpu"

    @property
    def known_devices(self) -> int:
        """Devices of one learner of this pool, as far as the recipe tells."""
        each = self.devices or max(1, int(self.resources.get("GPU", 0)), int(self.resources.get("TPU", 0)))
        return each * self.processes

    @property
    def unit_resources(self) -> dict[str, float]:
        """The sum of the resources of all processes of one learner."""
        return {kind: amount * self.processes for kind, amount in self.resources.items()}

    @model_validator(mode="after")
    def _between(self) -> Self:
        if not self.min <= self.learners <= self.most:
            raise ValueError(f"learners = {self.learners} must lie between min = {self.min} and max = {self.max}")
        if self.opportunistic and self.max is None:
            raise ValueError("an opportunistic pool takes all that is there: give max")
        return self

    def names(self, learners: int) -> list[str]:
        """The names of its first learners."""
        return [f"learner-{self.name}-{index}" for index in range(learners)]

    @property
    def most(self) -> int:
        """Learners for which a local Ray makes room."""
        return 2 * self.learners if self.max is None else self.max


class BudgetConfig(Section):
    """When the run ends. Exactly one of the two."""

    tokens: PositiveInt | None = Field(None, description="committed tokens, of all learners together")
    syncer_steps: PositiveInt | None = Field(None, description="syncer steps, one merge of one fragment each")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.tokens is None) == (self.syncer_steps is None):
            raise ValueError("give exactly one of tokens and syncer_steps")
        return self


class EvalConfig(Section):
    """Held-out evaluation of the syncer's parameters."""

    every: NonNegativeInt = Field(100, description="syncer steps between evaluations; 0 = only first and last")
    sequences: PositiveInt = Field(256, description="held-out samples per evaluation")
    sets: Annotated[tuple[CorpusConfig, ...], Field(max_length=EVAL_SETS_MOST)] = Field(
        (), description="further held-out sets, each the held-out part of a corpus with the run's tokens"
    )
    batch_size: PositiveInt = Field(32, description="samples that the evaluator takes at a time")
    resources: dict[str, PositiveFloat] = Field(
        {"CPU": 0.5},
        description="of the evaluator; with GPU or TPU it runs where these are, whatever run.control says",
    )
    timeout_s: PositiveFloat = Field(300.0, description="an evaluation that takes longer is given up")

    @property
    def accelerated(self) -> bool:
        return any(kind in self.resources for kind in ("GPU", "TPU"))

    @model_validator(mode="after")
    def _names(self) -> Self:
        once("sets", self.sets)
        return self


class FaultConfig(Section):
    """One planned fault: what, to whom, when."""

    kind: FaultKind = Field(description="what happens to the process, its link or what it sends")
    learner: str = Field(
        description="a learner's name, with /1 for its rank 1; or `any`: one chosen by the seed; or `syncer`"
    )
    point: Point | None = Field(None, description="of a kill of the syncer: where in a commit")
    at_step: PositiveInt | None = Field(None, description="when the syncer reaches this step")
    at_s: NonNegativeFloat | None = Field(None, description="seconds after the first learner step")
    duration_s: PositiveFloat = Field(5.0, description="length of freeze, slow, straggle, link and corrupt")
    delay_s: PositiveFloat = Field(0.2, description="added to every step (slow), or to a step on average (straggle)")

    @model_validator(mode="after")
    def _when(self) -> Self:
        if (self.at_step is None) == (self.at_s is None):
            raise ValueError("give exactly one of at_step and at_s")
        if self.point is not None and (self.kind, self.learner) != ("kill", SYNCER):
            raise ValueError(f'point belongs to kind = "kill" of learner = "{SYNCER}"')
        return self


class ChaosConfig(Section):
    """Faults to inject. Without any, the run has no chaos actor."""

    seed: NonNegativeInt | None = Field(None, description="default: the run's seed")
    faults: tuple[FaultConfig, ...] = Field((), description="planned faults")
    mtbf_s: PositiveFloat | None = Field(None, description="mean time between further, random faults of the whole run")
    kinds: tuple[FaultKind, ...] = Field(("kill", "freeze"), min_length=1, description="of random faults")
    freeze_s: PositiveFloat = Field(5.0, description="length of a random freeze")
    duration_s: PositiveFloat = Field(5.0, description="length of a random slow, straggle, link or corrupt")
    delay_s: PositiveFloat = Field(0.2, description="added to a step in a random slow, on average in a straggle")

    @property
    def active(self) -> bool:
        return bool(self.faults) or self.mtbf_s is not None


class DurabilityConfig(Section):
    """Where commits and checkpoints are kept, and which losses they survive."""

    mode: Literal["journal", "checkpoint"] = Field(
        "journal",
        description="what an announced commit survives. journal: all that its store survives; checkpoint: nothing "
        "newer than the last checkpoint",
    )
    store: str | None = Field(
        None, description="of journal and checkpoints: a folder or URI, e.g. s3://BUCKET/RUN; default: the run's folder"
    )
    every_s: NonNegativeFloat = Field(600.0, description="between two checkpoints; 0 = only when the run is stopped")
    keep: PositiveInt = Field(3, description="newest checkpoints; older ones are removed")


class RunConfig(Section):
    """Where the run is kept, and how it is kept alive and watched."""

    folder: str | None = Field(
        None, description="the run's own, a path or file:// URI; default: runs/NAME. Not part of the config hash"
    )
    restart_backoff_s: NonNegativeFloat = Field(
        1.0, description="wait before the second restart in a row; doubles, up to 30 s"
    )
    hang_s: PositiveFloat = Field(
        20.0, description="a learner silent for this long that does not step is killed and restarted"
    )
    unreachable_s: PositiveFloat = Field(
        3600.0,
        description="the same for one that is out of reach: it steps and its reports do not arrive, or its node cannot "
        "be seen; hang_s or more",
    )
    syncer_lease_s: PositiveFloat = Field(5.0, description="a syncer silent for this long is replaced")
    shards: PositiveInt = Field(
        1, le=64, description="processes that hold, merge and store the fragments; 1: the syncer's own"
    )
    start_s: PositiveFloat = Field(120.0, description="a start or join without progress for this long is begun anew")
    idle_s: PositiveFloat = Field(
        300.0, description="with no syncer step for this long the run fails; waiting for a place does not count"
    )
    watch: bool = Field(True, description="serve the live page beside diloco run, on loopback, and print its address")
    track: tuple[str, ...] = Field(
        (),
        description="send curves to tensorboard:FOLDER or wandb:PROJECT beside diloco run; diloco track does it later",
    )
    dashboard: bool = Field(False, description="start Ray's dashboard with a local Ray, and print its address")
    metrics: bool = Field(True, description="export Prometheus metrics through Ray")
    control: dict[str, Annotated[str, Field(pattern=LABEL)]] = Field(
        {}, description="labels of the nodes that all actors of a run but its learners may run on, on a cluster"
    )


class LinkConfig(Section):
    """The link between two regions."""

    between: tuple[str, str] = Field(description="two regions of [[pools]], of run.control or fleet.syncer_region")
    gbit_s: PositiveFloat = Field(description="each way, as far as this run may use it")
    latency_ms: NonNegativeFloat = Field(0.0, description="one way")
    price_per_gb: NonNegativeFloat | None = Field(None, description="in the currency of the pools' prices")


class FleetPoolConfig(Section):
    """One learner of a pool, as `diloco plan` is told of it."""

    name: str = Field(description="of one of [[pools]]")
    step_s: PositiveFloat | None = Field(
        None, le=86_400.0, description="seconds of a step of its learners without slowdown, instead of fleet.step_s"
    )
    chips: PositiveInt | None = Field(None, description="that fail independently; default: its accelerators, or 1")
    price_per_hour: NonNegativeFloat | None = Field(None, description="in any currency, the same for all pools")
    mtbf_hours: PositiveFloat | None = Field(
        None, le=1e9, description="mean time until it is lost, e.g. preempted; default: fleet.mtbf_hours / chips"
    )


class FleetConfig(Section):
    """Settings for planning alone. A run does not read them, and its hash does not cover them."""

    step_s: PositiveFloat | None = Field(None, le=86_400.0, description="seconds of a step without a pool's slowdown")
    mtbf_hours: PositiveFloat = Field(8766.0, le=1e9, description="mean time between failures of one chip: a year")
    detect_s: NonNegativeFloat = Field(3.0, le=1e7, description="until a lost learner is noticed")
    replace_s: NonNegativeFloat = Field(600.0, le=1e7, description="mean time until its hardware is replaced")
    start_s: NonNegativeFloat = Field(60.0, le=1e7, description="then until it steps: imports, compiler, peer's state")
    syncer_region: str | None = Field(
        None, pattern=LABEL, description="of the syncer; default: on the first node with room"
    )
    links: tuple[LinkConfig, ...] = Field((), description="between regions")
    pools: tuple[FleetPoolConfig, ...] = Field((), description="by the names of [[pools]]")

    @property
    def outage_s(self) -> float:
        """Mean seconds from a learner's loss to its next step."""
        return self.detect_s + self.replace_s + self.start_s


class Recipe(Section):
    """The whole configuration of a run, which is resolved, hashed and stored with it. Only planning reads `fleet`."""

    name: str = Field(pattern=f"^{NAME}$", description="of the run: lower-case letters, digits and hyphens")
    seed: NonNegativeInt = Field(0, le=SEED_MAX, description="of initial parameters, the order of the data, and chaos")
    task: str = Field(TASK, pattern=r"^[\w.]+:[\w.]+$", description="model, data and loss: package.module:factory")
    model: Table = Field({}, description="arguments of the task's factory")
    init_from: str | None = Field(
        None,
        description="parameters to start from: a .safetensors file, a run's folder or its final/, or a folder in the "
        "layout of Hugging Face",
    )
    init_digest: str | None = Field(None, description="of init_from's content; filled in when the recipe is resolved")
    data: DataConfig = DataConfig()
    inner: InnerConfig = InnerConfig()
    sync: SyncConfig = SyncConfig()
    outer: OuterConfig = OuterConfig()
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]
    budget: BudgetConfig
    eval: EvalConfig = EvalConfig()
    chaos: ChaosConfig = ChaosConfig()
    durability: DurabilityConfig = DurabilityConfig()
    run: RunConfig = RunConfig()
    fleet: FleetConfig = FleetConfig()

    @property
    def learners(self) -> dict[str, PoolConfig]:
        """Every learner wanted at the start by name, in order."""
        return {name: pool for pool in self.pools for name in pool.names(pool.learners)}

    @property
    def processes(self) -> list[str]:
        """Every process of these learners: a learner's name for its rank 0, with /1, /2, ... for its other ranks."""
        return [
            f"{name}/{rank}" if rank else name for name, pool in self.learners.items() for rank in range(pool.processes)
        ]

    def pool_of(self, learner: str) -> PoolConfig:
        """The pool of a learner, also of one that joined later. Raises KeyError for a name of no pool."""
        for pool in self.pools:
            if re.fullmatch(f"learner-{re.escape(pool.name)}-[0-9]+", learner):
                return pool
        raise KeyError(learner)

    @property
    def home(self) -> str:
        """What other regions call the one of the syncer and the orchestrator."""
        return self.run.control.get("region", "home")

    @property
    def joined(self) -> tuple[str, ...]:
        """The regions that are Ray clusters of their own."""
        return tuple(dict.fromkeys(pool.region for pool in self.pools if pool.joined and pool.region))

    def pools_of(self, region: str) -> list[tuple[int, PoolConfig]]:
        """The pools of a region that is a Ray cluster of its own, with their places; "": all others."""
        pools = enumerate(self.pools)
        return [(index, pool) for index, pool in pools if ((pool.region or "") if pool.joined else "") == region]

    def joined_region(self, learner: str) -> str:
        """The region of a learner's pool, if that is a Ray cluster of its own; else empty."""
        pool = self.pool_of(learner)
        return (pool.region or "") if pool.joined else ""

    def is_learner(self, name: str) -> bool:
        """Whether a pool has, or could have, a learner of this name."""
        return any(re.fullmatch(f"learner-{re.escape(pool.name)}-[0-9]+", name) for pool in self.pools)

    @property
    def held_out_sets(self) -> dict[str, DataConfig]:
        """The [data] of each further held-out set, by name."""
        return {each.name: self.data.of(each) for each in self.eval.sets}

    @property
    def quorum(self) -> int:
        """K as a number."""
        return len(self.learners) if self.sync.quorum == "all" else self.sync.quorum

    @property
    def warm_start(self) -> WarmStart | None:
        """The source of the initial parameters, in a resolved recipe; None: the task makes them."""
        if self.init_from is None:
            return None
        assert self.init_digest is not None, "resolve the recipe first"
        return WarmStart(self.init_from, self.init_digest)

    def canonical(self) -> dict[str, Any]:
        """The recipe as JSON values under its own keys, without unset options, `fleet` and `run.folder`."""
        left_out: Any = {"fleet": True, "run": {"folder"}}
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)

    @property
    def config_hash(self) -> str:
        return hashed(self.canonical())


def hashed(canonical: dict[str, Any]) -> str:
    """The config hash of a recipe's plain values."""
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None
