"""The top of the report: the verdict in one sentence, and the key numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.store.status_text import DASH, number, part, percent, seconds, stretched, text


@dataclass(frozen=True)
class RunVerdict:
    """How the run went: `good`, `bad`, or `open` where the log tells neither."""

    tone: Literal["good", "bad", "open"]
    word: str
    sentence: str


@dataclass(frozen=True)
class Tile:
    """One key number, with what to compare it with."""

    label: str
    value: str
    detail: str = ""


# The states of a check as users read them; JSON keeps the keys.
STATUS_WORDS = {"pass": "passed", "violated": "failed", "unknown": "unknown", "idle": "not exercised"}


def checks_words(checks: Sequence[Mapping[str, Any]]) -> str:
    """How many checks passed, failed, could not be made, or had nothing to check: 12 of 12 passed, 3 not exercised."""
    counts = Counter(check["status"] for check in checks)
    words = f"{counts['pass']} of {len(checks) - counts['idle']} passed"
    if counts["violated"]:
        names = ", ".join(check["name"] for check in checks if check["status"] == "violated")
        words += f", {counts['violated']} failed ({names})"
    if counts["unknown"]:
        words += f", {counts['unknown']} unknown"
    if counts["idle"]:
        words += f", {counts['idle']} not exercised"
    return words


def verdict(summary: Mapping[str, Any]) -> RunVerdict:
    state, reason = summary["state"], text(summary["reason"])
    checks = summary["checks"]
    counts = Counter(check["status"] for check in checks)
    told = f"Checks: {checks_words(checks)}."
    if state is None:
        why = "The log has no end: the run is still going, or its orchestrator died."
        return RunVerdict("bad" if counts["violated"] else "open", "no end yet", f"{why} {told}")
    if state == "failed":
        return RunVerdict("bad", "failed", f"The run failed: {_line(reason)}. {told}")
    if state == "stopped":
        tone: Any = "bad" if counts["violated"] else "open"
        return RunVerdict(tone, "stopped", f"The run was stopped before it reached its budget: {_line(reason)}. {told}")
    if summary["ok"]:
        return RunVerdict(
            "good",
            f"{state}, ok",
            f"The run reached its budget ({_line(reason)}), and every token is accounted for. {told}",
        )
    return RunVerdict(
        "bad", f"{state}, not ok", f"The run reached its budget ({_line(reason)}), but not all is well. {told}"
    )


def _line(reason: str) -> str:
    """The reason in one line: of a traceback, the last."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else DASH


def tiles(summary: Mapping[str, Any]) -> list[Tile]:
    """The key numbers; of any summary, as files may be of another version."""
    tokens, shares, faults = part(summary, "tokens"), part(summary, "participation"), summary.get("faults") or []
    rounds = part(summary, "round_steps")
    discarded = sum(count or 0 for count in part(tokens, "discarded").values())
    recovered = sum(fault.get("recovery_s") is not None for fault in faults)
    rows: tuple[tuple[str, str, str], ...] = (
        ("Held-out loss", number(summary.get("eval_loss"), 3), _losses(summary)),
        (
            "Tokens committed",
            number(tokens.get("committed")),
            f"of {number(tokens.get('processed'))} processed; {number(discarded)} were discarded",
        ),
        (
            "Tokens per second",
            number(summary.get("tokens_per_s")),
            f"over {seconds(summary.get('wall_s'))}, first step to last commit",
        ),
        (
            "Outer steps",
            number(summary.get("commits")),
            f"in {number(summary.get('syncer_steps'))} syncer steps; "
            f"each fragment at least {number(summary.get('rounds_per_fragment'))} times"
            if summary.get("commits")
            else "none was committed",
        ),
        ("Availability", percent(summary.get("availability")), "of the learners' time, alive and with a lease"),
        ("Goodput", percent(summary.get("goodput_time")), "of the learners' time, in steps that were committed"),
        (
            "Participation",
            percent(shares.get("mean")),
            f"of all learners; {percent(shares.get('alive_mean'))} of the live ones",
        ),
        (
            "Steps a round",
            number(rounds.get("median"), 1),
            stretched(rounds.get("median"), rounds.get("asked") or 0)
            or f"inner steps of the median learner; sync.H = {number(rounds.get('asked'))}",
        ),
        ("Global downtime", seconds(summary.get("global_downtime_s")), "in which no learner stepped"),
        ("Outer downtime", seconds(summary.get("outer_downtime_s")), "without a commit, beyond twice the median gap"),
        ("Faults", number(len(faults)), f"{recovered} recovered from" if faults else "none injected, none met"),
    )
    if ranges := summary.get("set_aside"):
        named = ", ".join(f"{start} to {stop - 1}" for start, stop in ranges[:8]) + " and more" * (len(ranges) > 8)
        count = sum(stop - start for start, stop in ranges)
        rows += (("Samples set aside", number(count), f"two learners had ended on {named}"),)
    return [Tile(name, value, told if value != DASH else "not known from this log") for name, value, told in rows]


def _losses(summary: Mapping[str, Any]) -> str:
    if summary.get("eval_fault"):
        return f"the last evaluation failed: {summary['eval_fault']}"
    if summary.get("initial_eval_loss") is None:
        return "not known from this log"
    unit = f"{summary['loss_unit']}; " if summary.get("loss_unit") else ""
    return f"{unit}{number(summary['initial_eval_loss'], 3)} at the start"
