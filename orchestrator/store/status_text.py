"""The status of a run as text, from its plain dict. Missing values and None show as a dash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("learner", "state", "step", "tokens/s", "loss", "round", "lag", "lease", "pid", "last fault")
ENDED = ("finished", "stopped", "failed")
DASH = "-"
STRETCHED = 1.25  # times H inner steps that rounds may take without a warning


def number(value: Any, digits: int = 0) -> str:
    """1234567 as 1,234,567; a dash for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return DASH
    return f"{value:,.{digits}f}"


def loss(value: Any, unit: Any) -> str:
    """2.123 nats/token; the unit is the task's, and may be missing."""
    shown = number(value, 3)
    return shown if shown == DASH or not unit else f"{shown} {unit}"


def brief(value: Any) -> str:
    """A number of unknown magnitude, four digits: 0.9312, 1.234e-05."""
    return DASH if number(value) == DASH else f"{value:.4g}"


def percent(share: Any) -> str:
    return DASH if number(share) == DASH else f"{100 * share:.1f} %"


def seconds(value: Any) -> str:
    """A duration: 4.2 s, 3:05, 1:02:30; -1:04 for a moment before."""
    if number(value) == DASH or value in (float("inf"), float("-inf")):
        return DASH
    if abs(value) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(abs(value)), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" * (value < 0)
    return f"{sign}{hours}:{minutes:02}:{rest:02}" if hours else f"{sign}{minutes}:{rest:02}"


def amount(size: float | None) -> str:
    """Bytes in a unit that suits them: 4.1 KiB, 1,234 GiB."""
    if size is None:
        return DASH
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size:.0f} B"


def text(value: Any) -> str:
    return DASH if value is None or value == "" else str(value)


def part(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of the status; empty when it is missing."""
    return status.get(name) or {}


def progress(status: Mapping[str, Any]) -> float:
    """Share of the budget, 0 to 1."""
    share: Any = part(status, "run").get("progress")
    return 0.0 if number(share) == DASH else min(1.0, max(0.0, float(share)))


def row(learner: Mapping[str, Any]) -> tuple[str, ...]:
    """One learner, a cell for each of COLUMNS."""
    return (
        text(learner.get("name")),
        text(learner.get("state")),
        number(learner.get("step")),
        number(learner.get("tokens_per_s")),
        number(learner.get("loss"), 3),
        number(learner.get("round_steps")),
        number(learner.get("version_lag")),
        seconds(learner.get("lease_age_s")),
        text(learner.get("pid")),
        text(learner.get("last_fault")),
    )


def headline(status: Mapping[str, Any]) -> str:
    """The whole run in one line."""
    run = part(status, "run")
    learners = status.get("learners") or []
    stepping = sum(learner.get("state") == "stepping" for learner in learners)
    standbys = sum(learner.get("standbys") or 0 for learner in learners)
    return (
        f"{text(run.get('name'))}: {text(run.get('state'))}, "
        f"syncer step {number(run.get('syncer_step'))} of {number(run.get('target_syncer_steps'))} "
        f"({percent(run.get('progress'))}), {stepping} of {len(learners)} learners stepping"
        f"{f' and {standbys} standbys waiting' if standbys else ''}, "
        f"held-out loss {loss(run.get('eval_loss'), run.get('loss_unit'))}, "
        f"{number(run.get('tokens_per_s'))} tokens/s, goodput {percent(run.get('goodput'))}, "
        f"{seconds(run.get('eta_s'))} left"
    )


def syncer_line(status: Mapping[str, Any]) -> str:
    syncer = part(status, "syncer")
    return (
        f"syncer: step {number(syncer.get('syncer_step'))}, epoch {number(syncer.get('epoch'))}, "
        f"quorum {text(syncer.get('quorum'))}, grace {seconds(syncer.get('grace_s'))}, "
        f"pid {text(syncer.get('pid'))}"
    )


def shard_lines(status: Mapping[str, Any]) -> list[str]:
    """The processes that hold and merge fragments, where the syncer does not do it itself."""
    return [
        f"shard {index}: pid {text(shard.get('pid'))}, node {text(str(shard.get('node') or '')[:8])}"
        + (f", {shard['trouble']}" if shard.get("trouble") else "")
        for index, shard in enumerate(part(status, "syncer").get("shards") or [])
    ]


def aux_line(status: Mapping[str, Any]) -> list[str]:
    """The means of the task's auxiliary values over the learners' last steps; nothing where it has none."""
    aux = part(status, "run").get("aux") or {}
    return ["auxiliary values: " + ", ".join(f"{name} {brief(value)}" for name, value in aux.items())] if aux else []


def link_lines(status: Mapping[str, Any]) -> list[str]:
    """The links whose contributions have fewer bits than the run's recipe says."""
    learners = [(each, part(each, "link")) for each in status.get("learners") or []]
    codecs = {link.get("codec") for _, link in learners if link.get("codec")}
    return [
        f"link of {text(each.get('name'))}: {text(link.get('codec'))}"
        for each, link in learners
        if len(codecs) > 1 and link.get("codec")
    ]


def checkpoint_line(status: Mapping[str, Any]) -> str:
    newest, written_at = part(status, "durability").get("checkpoint"), status.get("written_at")
    if not isinstance(newest, dict) or written_at is None:
        return "checkpoint: none yet"
    age_s = max(0.0, written_at - newest.get("at", written_at))
    snapshot, step = number(newest.get("snapshot")), number(newest.get("syncer_step"))
    return f"checkpoint: {snapshot}, at step {step}, {seconds(age_s)} old"


def conditions(status: Mapping[str, Any]) -> list[str]:
    """The run's conditions, a line each: `Quorum: false, TooFewLearners: 1 of 2 learners live`."""
    return [
        f"{text(condition.get('type'))}: {text(condition.get('status'))}, "
        f"{text(condition.get('reason'))}: {text(condition.get('message'))}"
        for condition in part(status, "run").get("conditions") or []
    ]


def stretched(steps: float | None, asked: int) -> str:
    """Say that rounds take more inner steps of the median learner than sync.H asks for; empty where they do not."""
    if steps is None or steps <= STRETCHED * asked:
        return ""
    return (
        f"rounds take {number(steps)} inner steps, not {asked}: fragments are not back in time for the next round; "
        f"set sync.H to {number(steps)}, send less (sync.codec, sync.downlink) or lower sync.quorum"
    )


def waiting(status: Mapping[str, Any], reason: str = "NoPlace") -> list[str]:
    """Say which pool has no place and why, and whether the quorum is possible without it; or what the store says."""
    conditions = part(status, "run").get("conditions") or []
    return [text(each.get("message")) for each in conditions if each.get("reason") == reason]


def states(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all whose change is told at once: states, last faults, missing places, samples set aside."""
    told = [(item.get("name"), item.get("state"), item.get("last_fault")) for item in status.get("learners") or []]
    run, aside = part(status, "run"), part(status, "syncer").get("set_aside")
    waits, stretched = (*waiting(status), *waiting(status, "StoreAway")), bool(waiting(status, "Stretched"))
    return (run.get("state"), run.get("eval_fault"), *told, *waits, stretched, aside)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the changes, a line each: missing places, learners' states and last faults."""
    old = {item.get("name"): item for item in before.get("learners") or []}
    missed = waiting(before)
    lines = [message for message in waiting(after) if message not in missed]
    lines += ["every learner has a place"] if missed and not waiting(after) else []
    away, back = waiting(after, "StoreAway"), waiting(before, "StoreAway")
    lines += [message for message in away if message not in back] if away else ["the store is back"] * bool(back)
    stretched, were = waiting(after, "Stretched"), waiting(before, "Stretched")
    lines += [] if were else stretched
    failed = part(after, "run").get("eval_fault")
    if failed and failed != part(before, "run").get("eval_fault"):
        lines.append(f"an evaluation failed: {failed}")
    skipped, before_skipped = (part(part(each, "run"), "evaluations").get("skipped") for each in (after, before))
    if skipped and not before_skipped:
        lines.append("evaluations take longer than eval.every syncer steps: those that come due meanwhile are skipped")
    aside = part(after, "syncer").get("set_aside")
    if aside and aside != part(before, "syncer").get("set_aside"):
        lines.append(f"samples {aside[0]} to {aside[1] - 1} are set aside: two learners have ended on them")
    for learner in after.get("learners") or []:
        name, earlier = text(learner.get("name")), old.get(learner.get("name"), {})
        if learner.get("last_fault") and learner.get("last_fault") != earlier.get("last_fault"):
            lines.append(f"{name}: {learner['last_fault']}")
        if learner.get("state") != earlier.get("state"):
            lines.append(f"{name}: {text(earlier.get('state'))} -> {text(learner.get('state'))}")
    return lines


def lines(status: Mapping[str, Any]) -> list[str]:
    """The whole status as aligned plain text."""
    rows = [COLUMNS, *(row(learner) for learner in status.get("learners") or [])]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(COLUMNS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]
    return [
        headline(status),
        *aux_line(status),
        *link_lines(status),
        syncer_line(status),
        *shard_lines(status),
        checkpoint_line(status),
        *conditions(status),
        *table,
    ]
