"""The status of a run as text, from its plain dict. Missing values and None show as a dash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ENDED = ("finished", "stopped", "failed")
DASH = "-"
STRETCHED = 1.25  # times H inner steps that rounds may take without a warning


def number(value: Any, digits: int = 0) -> str:
    """1234567 as 1,234,567; a dash for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return DASH
    return f"{value:,.{digits}f}"


def loss(value: Any, unit: Any = None) -> str:
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


def elapsed(status: Mapping[str, Any]) -> str:
    began, now = part(status, "run").get("started_at"), status.get("written_at")
    return seconds(None if began is None or now is None else now - began)


def training_loss(status: Mapping[str, Any]) -> float | None:
    """The mean of the learners' losses in their last steps."""
    known = [each["loss"] for each in status.get("learners") or [] if each.get("loss") is not None]
    return sum(known) / len(known) if known else None


def main_lines(status: Mapping[str, Any], trend: str = "") -> list[str]:
    """How far the run is, its losses, its learners. `trend`: the course of the training loss, drawn."""
    run, learners = part(status, "run"), status.get("learners") or []
    stepping = sum(learner.get("state") == "stepping" for learner in learners)
    standbys = sum(learner.get("standbys") or 0 for learner in learners)
    return [
        f"{text(run.get('name'))}: {text(run.get('state'))}, {percent(run.get('progress'))}, "
        f"syncer step {number(run.get('syncer_step'))} of {number(run.get('target_syncer_steps'))}, "
        f"{elapsed(status)} elapsed, {seconds(run.get('eta_s'))} left",
        f"training loss {number(training_loss(status), 3)}, "
        f"held-out {loss(run.get('eval_loss'), run.get('loss_unit'))}{trend and f'  {trend}'}",
        f"{stepping} of {len(learners)} learners stepping{f' and {standbys} standbys waiting' if standbys else ''}, "
        f"{number(run.get('tokens_per_s'))} tokens/s, {percent(run.get('kept_share'))} of tokens kept",
    ]


def headline(status: Mapping[str, Any]) -> str:
    """The whole run in one line."""
    return ", ".join(main_lines(status))


def away_lines(status: Mapping[str, Any]) -> list[str]:
    """The learners of a running run that do not step, and what ended each of them last; and what the run waits for."""
    going = part(status, "run").get("state") == "running"
    gone = [each for each in status.get("learners") or [] if going and each.get("state") != "stepping"]
    waits = [each for each in _conditions(status) if each.get("status") == "False"]
    return [
        *(
            f"away: {text(each.get('name'))}, {text(each.get('state'))}, {text(each.get('last_fault'))}"
            for each in gone
        ),
        *(text(each.get("message")) for each in waits if each.get("type") != "AllLearnersLive"),
    ]


def why(status: Mapping[str, Any]) -> str:
    """Why a run has ended, or who is away and what it waits for."""
    ended = [text(each.get("message")) for each in _conditions(status) if each.get("type") == "Ended"]
    return "; ".join(ended or away_lines(status))


# The states of a learner that comes for the first time, in their order, and what the run does meanwhile.
STAGES = {"importing": "importing", "compiling": "compiling", "joining": "joining"}


def stage(status: Mapping[str, Any]) -> str:
    """What a run does that does not train yet, by its farthest learner; empty: it trains, or has ended."""
    states = {learner.get("state") for learner in status.get("learners") or []}
    if "stepping" in states or part(status, "run").get("state") not in (None, "starting", "running"):
        return ""
    return next((what for state, what in reversed(STAGES.items()) if state in states), "placing and starting learners")


def details(status: Mapping[str, Any]) -> list[str]:
    """All that a status says but its learners: with the syncer, the newest checkpoint and every condition."""
    run, syncer = part(status, "run"), part(status, "syncer")
    newest, kept = part(status, "durability").get("checkpoint"), "none yet"
    if isinstance(newest, dict) and (written_at := status.get("written_at")) is not None:
        age = seconds(max(0.0, written_at - newest.get("at", written_at)))
        kept = f"{number(newest.get('snapshot'))}, at step {number(newest.get('syncer_step'))}, {age} old"
    aux = ", ".join(f"{name} {brief(value)}" for name, value in (run.get("aux") or {}).items())
    return [
        *main_lines(status),
        *([f"auxiliary values: {aux}"] if aux else []),
        f"syncer: step {number(syncer.get('syncer_step'))}, epoch {number(syncer.get('epoch'))}, "
        f"quorum {text(syncer.get('quorum'))}, grace {seconds(syncer.get('grace_s'))}, pid {text(syncer.get('pid'))}",
        f"checkpoint: {kept}",
        *(
            ": ".join(text(each.get(key)) for key in ("type", "status", "reason", "message"))
            for each in _conditions(status)
        ),
    ]


def _conditions(status: Mapping[str, Any], reason: str | None = None) -> list[Mapping[str, Any]]:
    found = part(status, "run").get("conditions") or []
    return [each for each in found if reason is None or each.get("reason") == reason]


def stretched(steps: float | None, asked: int) -> str:
    """Say that rounds take more inner steps of the median learner than sync.H asks for; empty where they do not."""
    if steps is None or steps <= STRETCHED * asked:
        return ""
    return (
        f"rounds take {number(steps)} inner steps, not {asked}: fragments are not back in time for the next round; "
        f"set sync.H to {number(steps)}, send less (sync.codec, sync.downlink) or lower sync.quorum"
    )


# The reasons of conditions that are told when they come, and what is said once they have gone.
TOLD = {"NoPlace": "every learner has a place", "StoreAway": "the store is back", "Stretched": ""}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what is told at once, a line each: what the run waits for, states, last faults, samples set aside."""
    lines = []
    for reason, gone in TOLD.items():
        were, now = ([text(each.get("message")) for each in _conditions(of, reason)] for of in (before, after))
        lines += [each for each in now if each not in were and (gone or not were)]
        lines += [gone] if gone and were and not now else []
    failed = part(after, "run").get("eval_fault")
    if failed and failed != part(before, "run").get("eval_fault"):
        lines.append(f"an evaluation failed: {failed}")
    skipped, before_skipped = (part(part(each, "run"), "evaluations").get("skipped") for each in (after, before))
    if skipped and not before_skipped:
        lines.append("evaluations take longer than eval.every syncer steps: those that come due meanwhile are skipped")
    aside = part(after, "syncer").get("set_aside")
    if aside and aside != part(before, "syncer").get("set_aside"):
        lines.append(f"samples {aside[0]} to {aside[1] - 1} are set aside: two learners have ended on them")
    old = {item.get("name"): item for item in before.get("learners") or []}
    for learner in after.get("learners") or []:
        name, earlier = text(learner.get("name")), old.get(learner.get("name"), {})
        was, fault = (re.sub(r"[\d.]+", "", each.get("last_fault") or "") for each in (earlier, learner))
        if fault and fault != was:  # once, whatever it counts
            lines.append(f"{name}: {learner['last_fault']}")
        if learner.get("state") != earlier.get("state"):
            lines.append(f"{name}: {text(earlier.get('state'))} -> {text(learner.get('state'))}")
    states = [text(part(each, "run").get("state")) for each in (before, after)]
    ends = bool(before) and states[0] != states[1]
    return lines + [f"{text(part(after, 'run').get('name'))}: {' -> '.join(states)}"] * ends
