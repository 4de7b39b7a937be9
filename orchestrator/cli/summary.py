"""The block of text at the end of a run. Unknown values show as a dash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.report.headline import STATUS_WORDS, checks_words, set_aside
from orchestrator.store.status_text import DASH, loss, number, part, percent, seconds, text


def block(summary: Mapping[str, Any], folder: str) -> str:
    """The summary of a run for people, with the place of its files."""
    return "\n".join(
        [
            f"{_of(summary, 'name')}: {_of(summary, 'state')}{_verdict(summary)}",
            *(f"  {label:<16}{value}" for label, value in _facts(summary)),
            *_faults(summary),
            *_checks(summary),
            f"  {'files':<16}{folder}",
        ]
    )


def _verdict(summary: Mapping[str, Any]) -> str:
    """A stopped run did not reach its end, but is no failure."""
    if summary.get("ok"):
        return ", ok"
    return "" if summary.get("state") == "stopped" else ", NOT OK"


def _of(table: Mapping[str, Any], key: str) -> str:
    return text(table.get(key))


def _facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary.get("state") != "finished":
        yield "because", _of(summary, "reason")
    first, last = number(summary.get("initial_eval_loss"), 3), loss(summary.get("eval_loss"), summary.get("loss_unit"))
    yield "held-out loss", f"{last} (at the start {first})"
    if failed := summary.get("eval_fault"):
        yield "", f"the last evaluation failed: {failed}"
    tokens = part(summary, "tokens")
    yield (
        "tokens",
        f"{number(tokens.get('committed'))} committed of {number(tokens.get('processed'))} processed",
    )
    discarded = tokens.get("discarded") or {}
    yield (
        "",
        ", ".join(
            [
                f"{number(tokens.get('in_flight'))} in flight",
                *(f"{number(n)} discarded: {why}" for why, n in discarded.items() if n),
            ]
        ),
    )
    samples, named = set_aside(summary)
    if samples:
        yield "set aside", f"{number(samples)} samples on which two learners had ended: {named}"
    yield (
        "outer steps",
        (
            f"{number(summary.get('commits'))} commits in {number(summary.get('syncer_steps'))} syncer "
            f"steps, every fragment at least {number(summary.get('rounds_per_fragment'))} times"
        ),
    )
    yield "time", f"{seconds(summary.get('wall_s'))}, {number(summary.get('tokens_per_s'))} tokens/s"
    yield (
        "availability",
        (
            f"{percent(summary.get('availability'))}, goodput {percent(summary.get('goodput_time'))}, "
            f"no learner stepping for {seconds(summary.get('global_downtime_s'))}"
        ),
    )
    shares = part(summary, "participation")
    yield (
        "participation",
        f"{percent(shares.get('mean'))}, of live learners {percent(shares.get('alive_mean'))}",
    )
    for name, share in (shares.get("by_learner") or {}).items():
        yield "", f"{name} {percent(share)}"


def _faults(summary: Mapping[str, Any]) -> Iterator[str]:
    faults = summary.get("faults") or []
    yield f"  {'faults':<16}{len(faults) or 'none'}"
    for fault in faults:
        origin = "" if fault.get("injected", True) else " (not injected)"
        yield (
            f"  {'':<16}{_of(fault, 'kind')} {_of(fault, 'target')} at {seconds(fault.get('at_s'))}{origin}: "
            f"detected after {seconds(fault.get('detection_s'))}, "
            f"recovered after {seconds(fault.get('recovery_s'))}"
        )


def _checks(summary: Mapping[str, Any]) -> Iterator[str]:
    checks = summary.get("checks") or []
    yield f"  {'checks':<16}{checks_words(checks) if checks else DASH}"
    for check in checks:
        if check.get("status") not in ("pass", "idle"):
            status = STATUS_WORDS.get(str(check.get("status")), DASH)
            yield f"  {'':<16}{status} {_of(check, 'name')}: {_of(check, 'reason')}"
