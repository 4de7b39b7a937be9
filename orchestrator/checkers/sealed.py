"""The sealed log: nothing in a run's folder was changed, dropped, inserted or swapped since it was said.

Reads the lines themselves, not a history. What was lost before it reached a file is not seen here, and whoever forges
the chains and the seal together is not found out. A log from before there were chains, or a run without its end, is
unknown.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.checkers.verdicts import Verdict, judge
from orchestrator.seal import SEAL_FILE, Chains, Key, differs, sealed

CHAIN = "every fact follows from the one that its writer said before"
SEAL = "the log holds every writer's facts up to the last that was sealed, and no others"
UNKNOWN = [
    Verdict("log.chain", CHAIN, "unknown", "there is no log to read"),
    Verdict("log.seal", SEAL, "unknown", "there is no log to read"),
]


def check(run_dir: Path) -> list[Verdict]:
    """Of a run's folder whose files can be read. Raises OSError where they cannot."""
    merged, segments = Chains(), Chains()
    if (run_dir / "events.jsonl").exists():
        merged.read(run_dir / "events.jsonl")
    for path in sorted((run_dir / "events").glob("*.jsonl")):
        segments.read(path)
    return [_chain(merged, segments), _seal(run_dir, merged, segments)]


def within(run_dir: Path) -> dict[Key, int] | None:
    """How many facts of each writer are the log's; None where nothing says so. What came after the seal is none."""
    try:
        ends = sealed(run_dir)
    except ValueError:
        return None
    return None if ends is None else {key: events for key, (events, _) in ends.items()}


def _chain(merged: Chains, segments: Chains) -> Verdict:
    broken = [each.broken for each in (merged, segments) if each.broken]
    if not broken and merged.unchained + segments.unchained:
        return Verdict("log.chain", CHAIN, "unknown", "the log has no chains: it is from before they were written")
    return judge("log.chain", CHAIN, merged.events + segments.events, "lines", broken)


def _seal(run_dir: Path, merged: Chains, segments: Chains) -> Verdict:
    """Segments may go on: what reached them after the seal is no part of the log."""
    try:
        ends = sealed(run_dir)
    except ValueError as error:
        return Verdict("log.seal", SEAL, "violated", str(error))
    if ends is None:
        return Verdict("log.seal", SEAL, "unknown", f"the run has no {SEAL_FILE}: it did not end, or is an older one")
    told = differs(merged.of, ends, whole=True) if merged.events else ""
    told = told or (differs(segments.of, ends, whole=False) if segments.events else "")
    events = sum(events for events, _ in ends.values())
    return judge("log.seal", SEAL, events, "sealed facts", [told] if told else [])
