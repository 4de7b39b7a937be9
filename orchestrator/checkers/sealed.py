"""The sealed log: nothing in a run's folder was changed, dropped, inserted or swapped since it was said.

Reads the lines themselves, not a history. What was lost before it reached a file is not seen here, and whoever forges
the chains and the seal together is not found out. A log from before there were chains, or a run without its end, is
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.seal import SEAL_FILE, Chains, Key, differs, sealed

LOG_FILE = "events.jsonl"
CHAIN = "every fact follows from the one that its writer said before"
SEAL = "the log holds every writer's facts up to the last that was sealed, and so do the segments; no others"
UNKNOWN = [
    Verdict("log.chain", CHAIN, "unknown", "there is no log to read"),
    Verdict("log.seal", SEAL, "unknown", "there is no log to read"),
]


def check(run_dir: Path) -> list[Verdict]:
    """Of a run's folder whose files can be read. Raises OSError where they cannot."""
    merged = _read([path for path in [run_dir / LOG_FILE] if path.exists()])
    segments = _read(sorted((run_dir / "events").glob("*.jsonl")))
    return [_chain([each for each in (merged, segments) if each is not None]), _seal(run_dir, merged, segments)]


def _read(paths: Sequence[Path]) -> Chains | None:
    chains = Chains()
    for path in paths:
        chains.read(path)
    return chains if paths else None


def within(run_dir: Path) -> dict[Key, int] | None:
    """How many facts of each writer are the log's; None where nothing says so. What came after the seal is none."""
    try:
        ends = sealed(run_dir)
    except ValueError:
        return None
    return None if ends is None else {key: events for key, (events, _) in ends.items()}


def _chain(read: Sequence[Chains]) -> Verdict:
    broken = [each.broken for each in read if each.broken]
    if not broken and any(each.unchained for each in read):
        return Verdict("log.chain", CHAIN, "unknown", "the log has no chains: it is from before they were written")
    return judge("log.chain", CHAIN, sum(each.events for each in read), "lines", broken)


def _seal(run_dir: Path, merged: Chains | None, segments: Chains | None) -> Verdict:
    """What is sealed has its merged log. Segments may be gone; those that are there hold the same, and no more."""
    try:
        ends = sealed(run_dir)
    except ValueError as error:
        return Verdict("log.seal", SEAL, "violated", str(error))
    if ends is None:
        return Verdict("log.seal", SEAL, "unknown", f"the run has no {SEAL_FILE}: it did not end, or is an older one")
    told = f"there is no {LOG_FILE}" if merged is None else differs(merged.of, ends)
    if not told and segments is not None and (beside := differs(segments.of, ends)):
        told = f"in the segments {beside}"
    events = sum(events for events, _ in ends.values())
    return judge("log.seal", SEAL, events, "sealed facts", [told] if told else [])
