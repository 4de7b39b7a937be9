"""The status model, `status.json`: the run's current state as a pure function of the syncer's and the orchestrator's
views. orchestrator/store/status_text.py renders it as text.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.store.status_text import number, stretched

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe


STORE_AWAY = "StoreAway"  # the reason of the condition that is not met because nothing can be stored
NO_PLACE = "NoPlace"  # the reason of conditions that are not met because nothing is reserved for a learner
ENDING = "ending"  # the state while learners leave and the run is evaluated and summed up
STALLED_S = 2.0  # a journal write that takes longer is reported


@dataclass(frozen=True)
class RunInfo:
    """The run as a whole. Times are Unix seconds."""

    state: str  # starting | running | ending | finished | stopped | failed
    reason: str  # why it ended
    started_at: float
    written_at: float
    eval_loss: float | None  # newest, in the task's unit
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)  # learners wanted, by pool
    pid: int | None = None  # the orchestrator's
    checkpoint: Mapping[str, Any] | None = None  # the newest: {"snapshot", "at", "syncer_step"}
    away: str = ""  # what a store says that is away, for which the run waits
    eval_fault: str = ""  # why the newest evaluation failed
    evaluations: Mapping[str, int] = field(default_factory=dict)  # finite | non_finite | skipped: how many
    faults: Mapping[str, int] = field(default_factory=dict)  # injected, by kind

    @property
    def ended(self) -> bool:
        """Whether training is over, even if the run is still being summed up."""
        return self.state in (ENDING, "finished", "stopped", "failed")


class ProgressTracker:
    """Joins the times of successive syncer epochs, each of which knows its own only. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._moved_at: float | None = None  # when a syncer step was last committed or passed, in Unix seconds
        self._began: float | None = None  # when this process first saw a running step
        self._before: tuple[int, float] | None = None  # tokens and progress at the start of this process

    def of(self, view: Mapping[str, Any]) -> dict[str, Any]:
        if self._before is None:
            self._before = view["tokens"], view["progress"]
        if self._began is None and view["running_s"] is not None:
            self._began = self._clock() - view["running_s"]
        running_s = None if self._began is None else self._clock() - self._began
        if (age := view.get("moved_s_ago")) is not None:
            self._moved_at = self._wall() - age
        before = {"tokens_before": self._before[0], "progress_before": self._before[1]}
        return {**view, "running_s": running_s, "moved_at": self._moved_at, **before}


@dataclass(frozen=True)
class LearnerPlace:
    """Where a learner's newest incarnation is, and what went wrong with the learner last."""

    pid: int | None
    node: str | None
    fault: str | None
    no_place: str = ""  # why nothing is reserved for it yet
    standbys: int = 0  # that are ready to take over
    others: tuple[tuple[int | None, str | None], ...] = ()  # pid and node of ranks 1, 2, ...
    restarts: Mapping[str, int] = field(default_factory=dict)  # by what ended the incarnation before
    recoveries: int = 0
    recovery_s: float | None = None  # the newest


def model(
    recipe: Recipe,
    about: RunInfo,
    view: Mapping[str, Any],
    syncer: Mapping[str, Any],
    placed: Mapping[str, LearnerPlace],
) -> dict[str, Any]:
    """`view`: the syncer's, empty before it answers; `syncer`: its pid, node and facts about the task."""
    task = syncer.get("task") or {}
    sample = task.get("tokens_per_sample")
    progress, running_s, tokens = view.get("progress", 0.0), view.get("running_s"), view.get("tokens", 0)
    done = progress - view.get("progress_before", 0.0)
    sent = view.get("sent_bytes", {})
    counts = {"learners": {}, **view.get("counts", {})}
    counted = counts.pop("learners")
    processed, committed = (
        sum(each[name] for each in counted.values()) for name in ("tokens_processed", "tokens_committed")
    )
    return {
        "run": {
            "name": recipe.name,
            "state": about.state,
            "syncer_step": view.get("syncer_step", 0),
            "target_syncer_steps": _target(recipe, view, sample),
            "progress": progress,
            "round_steps": _round_steps(view),
            "eval_loss": _finite(about.eval_loss),
            "eval_fault": about.eval_fault,
            "evaluations": dict(about.evaluations),
            "loss_unit": task.get("loss_unit", ""),
            "aux": _means(
                row["aux"] for row in view.get("learners", []) if row.get("aux") and (row["alive"] or about.ended)
            ),
            "tokens_processed": processed,
            "tokens_committed": tokens,
            "kept_share": committed / processed if processed else None,
            "tokens_per_s": (tokens - view.get("tokens_before", 0)) / running_s if running_s else None,
            "eta_s": running_s * (1 - progress) / done if running_s and done > 0 else None,
            "pools": _pools(recipe, about),
            "started_at": about.started_at,
            "conditions": _conditions(recipe, about, view, syncer, placed),
        },
        "learners": [
            _learner(recipe, about, row, placed.get(row["name"]), sample)
            | {"counts": counted.get(row["name"], {}) | {"version_bytes": sent.get(row["name"], 0)}}
            for row in view.get("learners", [])
            if row["alive"] or row["name"] in _wanted(recipe, about)
        ],
        "syncer": {
            "pid": syncer.get("pid"),
            "node": syncer.get("node"),
            "epoch": syncer.get("epoch", view.get("epoch")),
            "down_s": syncer.get("down_s", 0.0),
            "syncer_step": view.get("syncer_step", 0),
            "quorum": recipe.quorum,
            "grace_s": view.get("grace_s"),
            "set_aside": view.get("set_aside"),
            "moved_at": view.get("moved_at"),
            "step_s": view.get("step_s"),
            "counts": counts,
            "shards": view.get("shards", []),
        },
        "durability": {"mode": recipe.durability.mode, "journal": view.get("journal"), "checkpoint": about.checkpoint},
        "orchestrator": {"pid": about.pid, "faults": dict(about.faults)},
        "written_at": about.written_at,
    }


def _pools(recipe: Recipe, about: RunInfo) -> dict[str, int]:
    return {pool: len(names) for pool, names in _members(recipe, about).items()}


def _members(recipe: Recipe, about: RunInfo) -> dict[str, Sequence[str]]:
    return {pool.name: about.members.get(pool.name, pool.names(pool.learners)) for pool in recipe.pools}


def _wanted(recipe: Recipe, about: RunInfo) -> set[str]:
    """The learners that should run. Learners that have left are not shown."""
    return {name for names in _members(recipe, about).values() for name in names}


def _target(recipe: Recipe, view: Mapping[str, Any], sample: int | None) -> int | None:
    """The syncer step at which the budget is reached; None while that cannot be estimated.

    A budget in tokens is reached at the pace of the run so far: learners may step more or less than once per syncer
    step. Before the first commit every learner counts as stepping once.
    """
    if recipe.budget.syncer_steps is not None:
        return recipe.budget.syncer_steps
    assert recipe.budget.tokens is not None
    if done := int(view.get("tokens", 0)):
        return -(-int(view["syncer_step"]) * max(recipe.budget.tokens, done) // done)
    return sample and -(-recipe.budget.tokens // (sample * sum(pool.batch_size for pool in recipe.learners.values())))


def _learner(
    recipe: Recipe, about: RunInfo, row: Mapping[str, Any], placed: LearnerPlace | None, sample: int | None
) -> dict[str, Any]:
    pool = recipe.pool_of(row["name"])
    rate = pool.batch_size * sample / row["step_s"] if row["alive"] and row["step_s"] and sample else None
    return {
        "name": row["name"],
        "pool": pool.name,
        "region": pool.region,
        "state": _state(about, row),
        "pid": placed.pid if placed else None,
        "node": placed.node if placed else None,
        "ranks": [{"pid": pid, "node": node} for pid, node in placed.others] if placed else [],
        "incarnation": row["incarnation"],
        "step": row["step"],
        "round_steps": row["round_steps"],
        "tokens_per_s": rate,
        "loss": _finite(row["loss"]),
        "aux": {name: _finite(value) for name, value in (row.get("aux") or {}).items()},
        "lease_age_s": row["lease_age_s"],
        "version_lag": row["version_lag"],
        "link": {name: row.get(name) for name in ("codec", "latency_s", "bytes_s")},
        "last_fault": placed.fault if placed else None,
        "standbys": placed.standbys if placed else 0,
        "restarts": dict(placed.restarts) if placed else {},
        "recoveries": placed.recoveries if placed else 0,
        "recovery_s": placed.recovery_s if placed else None,
    }


def _finite(value: float | None) -> float | None:
    """None for a number that is not finite: status.json is strict JSON."""
    return value if value is not None and math.isfinite(value) else None


def _means(told: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the means of the learners' auxiliary values in their last steps, over those learners that have them."""
    values: dict[str, list[float]] = {}
    for aux in told:
        for name, value in aux.items():
            values.setdefault(name, []).append(value)
    return {
        name: _finite(math.fsum(each) / len(each)) if all(map(math.isfinite, each)) else None
        for name, each in values.items()
    }


def _state(about: RunInfo, row: Mapping[str, Any]) -> str:
    """A learner's phase; or silent (its lease expired), down (it has no lease), stopped (the run ended)."""
    if about.ended:
        return "stopped"
    if row["alive"]:
        return str(row["phase"])
    return "silent" if row["phase"] else "down"


def _conditions(
    recipe: Recipe,
    about: RunInfo,
    view: Mapping[str, Any],
    syncer: Mapping[str, Any],
    placed: Mapping[str, LearnerPlace],
) -> list[dict[str, str]]:
    durable = _durable(view, about.away)
    if about.ended:
        ended = _condition("Ended", about.state != ENDING, about.state.capitalize(), about.reason)
        return [ended, durable] if about.away else [ended]
    live = sum(row["alive"] and row["phase"] == "stepping" for row in view.get("learners", []))
    wanted = sum(_pools(recipe, about).values())
    all_live = live == wanted
    without = {name: placed[name].no_place for name in _wanted(recipe, about) if name in placed}
    without = {name: why for name, why in without.items() if why}
    return [
        _placing(recipe, about, without),
        _condition("AllLearnersLive", all_live, "Live" if all_live else "Missing", f"{live} of {wanted} step"),
        _quorum(live, wanted - len(without), wanted, recipe.quorum),
        _serving(syncer),
        _rounds(recipe, _round_steps(view)),
        durable,
    ]


def _placing(recipe: Recipe, about: RunInfo, without: Mapping[str, str]) -> dict[str, str]:
    """Whether resources are reserved for every learner; `without`: why not, by name of those that have none."""
    taken, told = _pools(recipe, about), []
    for pool, learners in taken.items():
        reasons = [why for name, why in without.items() if recipe.pool_of(name).name == pool]
        if reasons:
            told.append(f"pool {pool}: {len(reasons)} of {learners} learners wait for a place: {min(reasons)}")
    if told:
        return _condition("LearnersPlaced", False, NO_PLACE, "; ".join(told))
    more = [
        f"; pool {pool.name} takes up to {pool.most - taken[pool.name]} more"
        for pool in recipe.pools
        if pool.opportunistic and taken[pool.name] < pool.most
    ]
    return _condition("LearnersPlaced", True, "Placed", f"no learner waits for a place{''.join(more)}")


def _quorum(live: int, possible: int, wanted: int, quorum: int) -> dict[str, str]:
    if possible < quorum:
        message = (
            f"the quorum of {quorum} cannot be reached: {possible} of {wanted} learners have a place; the run waits"
        )
        return _condition("QuorumMet", False, NO_PLACE, message)
    met = live >= quorum
    return _condition("QuorumMet", met, "Met" if met else "BelowQuorum", f"{live} live, K = {quorum}")


def _round_steps(view: Mapping[str, Any]) -> float | None:
    """Inner steps in a round of the median learner, by whose steps the syncer's clock goes; if none lives, of all."""
    rows = view.get("learners", [])
    there = [row for row in rows if row["alive"]] or rows
    known = [row["round_steps"] for row in there if row["round_steps"] is not None]
    return statistics.median(known) if known else None


def _rounds(recipe: Recipe, steps: float | None) -> dict[str, str]:
    """Whether rounds take as many inner steps as the recipe asks for."""
    asked = recipe.sync.round_steps
    if told := stretched(steps, asked):
        return _condition("RoundsKept", False, "Stretched", told)
    told = "none is over yet" if steps is None else f"rounds take {number(steps)} inner steps"
    return _condition("RoundsKept", True, "Kept", f"{told}; sync.H = {asked}")


def _serving(syncer: Mapping[str, Any]) -> dict[str, str]:
    epoch, down_s = syncer.get("epoch"), syncer.get("down_s", 0.0)
    if down_s:
        return _condition("SyncerServes", False, "Down", f"epoch {epoch} has been starting for {down_s:.1f} s")
    return _condition("SyncerServes", True, "Serves", f"epoch {epoch}")


def stalled(journal: Mapping[str, Any]) -> bool:
    """Whether the store takes no record of a syncer's journal; `journal`: its view."""
    return float(journal.get("waiting_s", 0.0)) > STALLED_S


def store_trouble(view: Mapping[str, Any]) -> str:
    """What the store says, in a syncer's view, for which commits wait; empty while they do not."""
    journal = view.get("journal") or {}
    shards = next((each["trouble"] for each in view.get("shards", []) if each.get("trouble")), "")
    return shards or (journal.get("trouble") or "it does not answer" if stalled(journal) else "")


def away(status: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The newest status of a run whose folder is away, with the condition that says so."""
    run = status.get("run") or {}
    others = [each for each in run.get("conditions") or [] if each.get("type") != "Durable"]
    return {**status, "run": {**run, "conditions": [*others, _durable({}, why)]}}


def _durable(view: Mapping[str, Any], away: str) -> dict[str, str]:
    """Whether commits are being made durable, and all else that the run has to store."""
    journal = view.get("journal") or {}
    if why := away or store_trouble(view):
        return _condition("Durable", False, STORE_AWAY, f"the store is away, and the run waits for it: {why}")
    if trouble := journal.get("trouble"):
        return _condition("Durable", True, "Retrying", f"the store refused something: {trouble}")
    if damage := journal.get("damage"):
        return _condition("Durable", True, "WasDamaged", f"in the journal: {'; '.join(damage)}")
    written = f"{journal.get('bytes', 0):,} bytes were written, in {journal.get('groups', 0):,} groups"
    return _condition("Durable", True, "Kept", written)


def _condition(kind: str, status: bool, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": str(status), "reason": reason, "message": message}
