"""Draws from a seed a run's options and its planned faults, the same on every machine.

Every purpose draws from a stream of its own, by random() alone, whose values Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeVar

from learners.protocol.fact_buffer import ANSWER_MAX
from outer.config import SyncConfig
from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.schedule import Budget

T = TypeVar("T")

SYNCER_STEPS = 200
ELEMENTS = 2**18  # of a fragment that is made up
LEARNERS = ("a", "b", "c", "d")
NEWCOMERS = ("e", "f")
HOME, FAR = "home", "far"  # regions: the syncer's, and one whose learners give versions to each other
SHARDS = ("shard.0", "shard.1", "shard.2")  # hosts
EVERYBODY = "all"
SHARED = {"seed": 0}  # of the recipe, what everybody agrees on

# By topic, and for each kind of fault the share of the seeds that plan one.
KINDS: dict[str, dict[str, float]] = {
    "network": {
        "loss": 0.25, "duplication": 0.25, "reordering": 0.25, "cut_one_way": 0.25, "cut_two_way": 0.2,
        "flapping": 0.2, "slow_link": 0.2, "slow_download": 0.15, "link_down": 0.2,
    },
    "hosts": {
        "crash": 0.3, "crash_joining": 0.2, "crash_transferring": 0.2, "crash_answering": 0.15, "freeze": 0.3,
        "slow": 0.25, "straggle": 0.15, "wall_skew": 0.3, "wall_jump": 0.25, "clock_rate": 0.3, "clock_jump": 0.2,
        "batch_late": 0.15,
    },
    "storage": {
        "storage_slow": 0.2, "storage_failing": 0.2, "storage_full": 0.15, "storage_torn": 0.2, "storage_lost": 0.2,
        "storage_stale": 0.2, "tail_lost": 0.2,
    },
    "syncer": {"syncer_crash": 0.35, "zombie": 0.2, "kill_point": 0.35},
    "shards": {"shard_crash": 0.4, "shard_freeze": 0.3, "shard_cut": 0.3},
    "sessions": {"suspend": 0.5, "checkpoint_damaged": 0.35},
    "orchestrator": {"orchestrator_crash": 0.25, "orchestrator_freeze": 0.15, "folder_away": 0.2, "control_dies": 0.15},
    "membership": {
        "scale_out": 0.2, "drain": 0.2, "leave": 0.2, "flap": 0.15, "rejoin_storm": 0.15, "all_die": 0.12,
        "donor_dies": 0.25, "two_joiners": 0.15, "no_place": 0.15, "node_away": 0.15,
    },
    "payloads": {
        "bit_flip": 0.2, "fetch_damage": 0.2, "state_damage": 0.2, "non_finite": 0.2, "wrong_manifest": 0.15,
        "overflow": 0.12, "bad_sample": 0.2,
    },
    "confusion": {"garbled": 0.15, "echo": 0.15, "linger": 0.2},
    "joining": {"donor_leaves": 0.3, "state_late": 0.25, "starved": 0.2, "leave_joining": 0.2},
    "standbys": {  # where there are some
        "standby_crash": 0.5, "standby_freeze": 0.3, "standby_cut": 0.3, "standby_late": 0.3,
    },
    "islands": {"rank_crash": 0.4, "rank_freeze": 0.3, "rank_cut": 0.3, "rank_late": 0.3},  # likewise
    "rebuilding": {"value_damaged": 0.15, "journal_damaged": 0.15},
    "regions": {"gateway_crash": 0.5, "gateway_freeze": 0.3, "region_cut": 0.5},  # likewise
    "ending": {"stop": 0.5, "stop_committing": 0.5, "crash_ending": 0.5},
}  # fmt: skip
PROFILES: dict[str, tuple[str, ...]] = {  # topics, or single kinds
    "mixed": tuple(topic for topic in KINDS if topic != "ending"),
    "calm": (),
    "network": ("network",),
    "hosts": ("hosts",),
    "storage": ("storage", "syncer"),
    "syncer": ("syncer",),
    "membership": ("membership",),
    "payloads": ("payloads", "membership"),
    "confusion": ("confusion", "syncer"),
    "joining": ("joining",),
    "lockstep": ("reordering", "slow_link", "slow", "stop"),  # in strict overlap nobody joins: there are only delays
    "shards": ("shards", "storage", "syncer"),
    "sessions": ("sessions", "syncer", "orchestrator", "checkpoint_damaged", "storage_failing", "storage_full"),
    "rebuilding": ("rebuilding", "syncer", "cut_two_way", "loss", "crash"),  # so that versions are lost, too
    "standbys": ("standbys", "orchestrator", "crash", "freeze", "drain", "flap", "rejoin_storm"),
    "islands": ("islands", "orchestrator", "crash", "freeze", "drain"),
    "regions": ("regions", "syncer", "orchestrator", "crash", "freeze", "storage_slow", "storage_failing"),
    "ended": ("ending", "network", "syncer", "membership", "confusion"),
}
ALWAYS = frozenset({"syncer_crash"})  # but for mixed: what makes a profile's other faults matter
LOCKSTEP_HANG_S = 30.0  # there a learner that is merely slow must not be ended: who takes its place could not catch up
STRICT: dict[str, Any] = {"overlap": "strict", "grace": "infinite", "base_window": 0, "adaptive": False}


class Place(NamedTuple):
    """Where a learner is: its pool, and that one's region."""

    pool: str
    region: str | None


PLACE = Place("pool", None)


@dataclass(frozen=True)
class Fault:
    """One planned fault. Times are virtual seconds."""

    at: float
    kind: str
    target: str  # a learner, or "" where the kind says whom
    duration_s: float
    strength: float  # 0 to 1: how bad


@dataclass(frozen=True)
class Options:
    """Everything about one run that is not protocol. Times are seconds."""

    seed: int
    profile: str
    sync: SyncConfig
    quorum: int
    syncer_steps: int
    learners: tuple[str, ...]
    step_s: dict[str, float]  # of each learner that there may ever be
    batch: dict[str, int]  # samples of a step
    tokens: dict[str, int]  # of a step
    span_steps: int
    latency_s: float
    jitter_s: float
    append_s: float
    merge_s: float
    carried_max: int  # facts of a learner's answer
    warm_s: float  # until a shard's merge is compiled
    import_s: float
    compile_s: float
    start_s: float
    notice_s: float  # until a death is noticed, at most
    hang_s: float
    unreachable_s: float  # likewise, of a learner that steps and is not heard
    backoff_s: float
    storm_s: float  # the safety phase's length
    faults: tuple[Fault, ...]
    newcomers: tuple[str, ...] = NEWCOMERS
    ahead_s: float = 0.0  # for which learners hold samples
    aside_max: int = 64  # as data.set_aside: times that samples may be set aside
    in_flight_max: int = 2  # steps of a learner
    budget_tokens: int | None = None  # instead of the syncer steps
    dealt: tuple[Fragment, ...] = ()  # the model's own fragments; none: a model that is made up
    shards: int = 1
    every_s: float = 0.0  # between two checkpoints; 0: none is taken
    opportunistic: bool = False  # pools take every learner that has a place
    joined: bool = False  # the far region is a cluster of its own
    places: dict[str, Place] = field(default_factory=dict)  # of those that are not in PLACE
    ranks: dict[str, int] = field(default_factory=dict)  # of those that are islands
    standbys: tuple[str, ...] = ()  # learners that have one
    hosts: dict[str, str] = field(default_factory=dict)  # of those that are on another learner's, and like it

    @property
    def budget(self) -> Budget:
        return Budget(self.budget_tokens, None if self.budget_tokens else self.syncer_steps)

    @property
    def model(self) -> tuple[Fragment, ...]:
        made_up = (Fragment(p, (Tensor(f"t{p}", (ELEMENTS,), "float32"),)) for p in range(self.fragments))
        return self.dealt or tuple(made_up)

    def place(self, learner: str) -> Place:
        return self.places.get(learner, PLACE)

    def others(self, learner: str) -> list[str]:
        """Where the other ranks of an island are."""
        return [f"{learner}.{rank}" for rank in range(1, self.ranks.get(learner, 1))]

    @property
    def fragments(self) -> int:
        assert self.sync.fragments is not None
        return self.sync.fragments


TOKENS = 5  # of a sample


def stream(seed: int, purpose: str) -> Random:
    """Seeded by text, which Random hashes itself: independent of the process's own string hashing."""
    return Random(f"{seed} {purpose}")


def pick(chance: Random, items: Sequence[T]) -> T:
    return items[int(chance.random() * len(items))]


def between(chance: Random, low: float, high: float) -> float:
    return low + (high - low) * chance.random()


def draw(
    seed: int,
    profile: str = "mixed",
    *,
    syncer_steps: int = SYNCER_STEPS,
    learners: tuple[str, ...] = LEARNERS,
    **sync: Any,
) -> Options:
    """The options of a seed. `sync` overrides what is drawn of the recipe's [sync]."""
    chance = stream(seed, "options")
    fragments = 1 + int(chance.random() * 6)
    round_steps = fragments + int(chance.random() * (3 * fragments + 1))
    common_s = 0.1 + 0.4 * chance.random() * chance.random()
    step_s = {name: common_s * between(chance, 0.7, 1.6) for name in (*LEARNERS, *NEWCOMERS)}
    drawn: dict[str, Any] = {
        "P": fragments,
        "H": round_steps,
        "tau": min(int(chance.random() * 4), round_steps - 1),
        "grace": pick(chance, ("adaptive", "adaptive", "infinite", 0.0, 0.3)),
        "gamma": pick(chance, (0.0, 0.5, 0.9)),
        "participants": pick(chance, ("eligible", "eligible", "reported")),
        "pacing": pick(chance, ("clock", "clock", "quorum")),
        "adopt": pick(chance, ("overwrite", "rebase", "overwrite")),
        "recover": pick(chance, ("peer", "peer", "syncer")),
        "read_timeout_s": between(chance, 0.4, 2.0),
        "transfer_s": between(chance, 2.0, 8.0),
        "join_s": between(chance, 4.0, 15.0),
        "drain_s": between(chance, 3.0, 12.0),
        "lease_s": between(chance, 0.8, 3.0),
    }
    late = stream(seed, "base window")
    drawn["base_window"] = pick(late, (1, 1, 2, 4)) if late.random() < 0.4 else 0
    drawn["adaptive"] = drawn["grace"] != "infinite" and stream(seed, "links").random() < 0.3
    lossy = stream(seed, "codecs")  # of what a codec leaves out only the notices are simulated
    if lossy.random() < 0.2:
        drawn |= {"codec": pick(lossy, ("int8", "bf16")), "error_feedback": 0.9}
    downlink = stream(seed, "downlink").random()
    drawn["downlink"] = "int8" if downlink < 0.25 else "fp32"
    weighing = stream(seed, "weights")
    drawn["weights"] = pick(weighing, ("tokens", "equal")) if weighing.random() < 0.3 else "paper"
    quorum = 1 + int(chance.random() * len(learners))
    if profile == "lockstep":
        quorum, sync = len(learners), STRICT | sync
    stormy = 1.0 if profile == "ended" else 0.6  # of the run: that one may end in the storm
    storm_s = 8.0 + stormy * syncer_steps * common_s if PROFILES[profile] else 0.0
    batch = {name: 1 + int(chance.random() * 3) for name in step_s}
    ranks = _ranks(stream(seed, "ranks"), profile)
    standbys, hosts = _standbys(stream(seed, "standbys"), profile, ranks)
    places = _places(stream(seed, "regions"), profile)
    joined = bool(places) and stream(seed, "joined").random() < {"regions": 1.0, "mixed": 0.4}.get(profile, 0.0)
    joined = joined and not standbys and profile != "lockstep"
    if joined:
        drawn |= {"recover": "syncer"}  # a donor's state is no array here
        drawn |= {"lease_s": 1.0 + drawn["lease_s"], "read_timeout_s": 2.0 + drawn["read_timeout_s"]}
    for name, other in hosts.items():
        step_s[name], batch[name], places[name] = step_s[other], batch[other], places.get(other, PLACE)
    patience = between(stream(seed, "patience"), 1.0, 4.0)
    return Options(
        seed=seed,
        profile=profile,
        sync=SyncConfig.model_validate(drawn | sync),
        quorum=quorum,
        syncer_steps=syncer_steps,
        learners=learners,
        step_s=step_s,
        batch=batch,
        tokens={name: TOKENS * samples for name, samples in batch.items()},
        span_steps=2 + int(chance.random() * 15),
        latency_s=between(chance, 0.0005, 0.02),
        jitter_s=between(chance, 0.0, 0.02),
        append_s=between(chance, 0.001, 0.05),
        merge_s=between(chance, 0.001, 0.05),
        carried_max=pick(stream(seed, "carried"), (ANSWER_MAX, ANSWER_MAX, ANSWER_MAX, ANSWER_MAX, 24)),
        warm_s=max(0.0, between(stream(seed, "warming"), -16.0, 5.0)),
        import_s=between(chance, 0.2, 1.0),
        compile_s=between(chance, 0.2, 1.5),
        start_s=20.0,
        notice_s=between(chance, 0.2, 2.0),
        hang_s=(hang_s := LOCKSTEP_HANG_S if profile == "lockstep" else between(chance, 4.0, 10.0)),
        unreachable_s=patience * hang_s,
        backoff_s=0.5,
        storm_s=storm_s,
        faults=plan(seed, profile, storm_s),
        budget_tokens=_tokens(stream(seed, "budget"), syncer_steps) if profile == "ended" else None,
        in_flight_max=pick(stream(seed, "in flight"), (1, 2, 2)),
        every_s=_every_s(stream(seed, "checkpoints"), profile),
        shards=_shards(stream(seed, "shards"), profile),
        opportunistic="membership" in PROFILES[profile] and not joined and stream(seed, "pools").random() < 0.4,
        joined=joined,
        places=places,
        ranks=ranks,
        standbys=standbys,
        hosts=hosts,
    )


def _every_s(chance: Random, profile: str) -> float:
    """A third of the seeds takes checkpoints."""
    share = {"lockstep": 0.0, "sessions": 1.0}.get(profile, 0.33)
    return between(chance, 2.0, 10.0) if chance.random() < share else 0.0


def _shards(chance: Random, profile: str) -> int:
    """Of a fifth of the seeds several."""
    share = 1.0 if profile == "shards" else 0.5 if profile == "rebuilding" else 0.2
    return pick(chance, (2, 3)) if chance.random() < share else 1


def _places(chance: Random, profile: str) -> dict[str, Place]:
    """Of a third of the seeds some learners are far away."""
    if profile == "calm" or chance.random() >= (1.0 if profile == "regions" else 0.33):
        return {}
    return {name: Place(PLACE.pool, pick(chance, (FAR, FAR, HOME))) for name in (*LEARNERS, *NEWCOMERS)}


def _ranks(chance: Random, profile: str) -> dict[str, int]:
    """Of a fifth of the seeds some learners are islands."""
    if chance.random() >= {"islands": 1.0, "mixed": 0.2}.get(profile, 0.0):
        return {}
    return {name: pick(chance, (2, 3)) for name in (*LEARNERS, *NEWCOMERS) if chance.random() < 0.6}


def _standbys(chance: Random, profile: str, ranks: dict[str, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Of a quarter of the seeds the learners with standbys; and who is like whom, on one host."""
    if chance.random() >= {"standbys": 1.0, "mixed": 0.25}.get(profile, 0.0):
        return (), {}
    names = tuple(name for name in (*LEARNERS, *NEWCOMERS) if name not in ranks and chance.random() < 0.7)
    return names, {"b": "a"} if {"a", "b"}.issubset(names) and chance.random() < 0.7 else {}


def _tokens(chance: Random, syncer_steps: int) -> int | None:
    """A budget of half the seeds: a few tokens, or nearly what so many syncer steps bring."""
    return int(between(chance, 1.0, 10.0) * syncer_steps) * TOKENS if chance.random() < 0.5 else None


def shares(profile: str) -> dict[str, float]:
    """Return by kind of fault the share of a profile's seeds that plan one: more of few topics and single kinds."""
    topics = PROFILES[profile]
    given = {kind: share for kinds in KINDS.values() for kind, share in kinds.items()}
    kinds = [kind for topic in topics for kind in KINDS.get(topic, (topic,))]
    if profile == "mixed":
        return {kind: given[kind] for kind in kinds}
    least = 0.0 if len(KINDS.keys() & topics) > 2 else 0.5
    return {kind: 1.0 if kind in ALWAYS else max(given[kind], 0.5 if kind in topics else least) for kind in kinds}


def plan(seed: int, profile: str, storm_s: float, learners: tuple[str, ...] = LEARNERS) -> tuple[Fault, ...]:
    """Faults of so many seconds. Whether a kind occurs, and when, depends on no other kind."""
    faults = []
    for kind, share in shares(profile).items():
        chance = stream(seed, f"fault {kind}")
        if chance.random() >= share:
            continue
        for _ in range(pick(chance, (1, 1, 1, 2, 2, 3))):
            at = between(chance, 1.0, max(2.0, storm_s * 0.9))
            target = pick(chance, (*learners, *learners, EVERYBODY))
            lasts_s = min(between(chance, 0.5, 3.0) * between(chance, 0.3, 5.0), storm_s)
            faults.append(Fault(at, kind, target, lasts_s, chance.random()))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.kind)))
