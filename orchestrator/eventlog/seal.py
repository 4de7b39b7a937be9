"""Hash chains over the log, and the seal that records where each chain ends.

A line's `chain` hashes the chain of the same writer's previous line and this line's own text. Changing, dropping,
inserting or swapping an event therefore breaks the chain, unless all later lines of that writer and the seal are
rewritten too. Nothing is secret: a forger who rewrites all of it is not detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEAL_FILE = "seal.json"
DIGITS = 16  # of SHA-256, in hexadecimal
_SUFFIX = len(f',"chain":"{"0" * DIGITS}"}}')

Key = tuple[str, int]  # writer, incarnation


def link(before: str, content: str) -> str:
    """An event's chain value, from its writer's previous one ("" for the first) and its line without a chain."""
    return hashlib.sha256(f"{before}{content}".encode()).hexdigest()[:DIGITS]


def chained(content: str, chain: str) -> str:
    """An event's line with its chain."""
    return f'{content[:-1]},"chain":"{chain}"}}'


@dataclass
class Chains:
    """The chains of some files, read one after the other. An event read twice must be the same both times."""

    of: dict[Key, list[str]] = field(default_factory=dict)  # by sequence
    events: int = 0
    unchained: int = 0
    broken: str = ""  # the first event that does not fit its chain, in words

    def read(self, path: Path) -> None:
        """Verify a segment, or the merged log. A last line cut short by a crash is skipped."""
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            if told := self._take(line):
                self.broken = self.broken or f"{path.name}, line {number}: {told}"

    def _take(self, line: bytes) -> str:
        """Why this line does not fit its chain; empty if it does."""
        self.events += 1
        try:
            text = line.decode()
            record = json.loads(text)
            key, sequence, chain = (record["writer"], record["incarnation"]), record["sequence"], record.get("chain")
            seen = self.of.setdefault(key, [])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "no event"
        if type(sequence) is not int:
            return "no event"
        name = f"fact {sequence} of {key[0]} {key[1]}"
        if chain is None:
            self.unchained += 1
            return "" if self.unchained == self.events else f"{name} has no chain"
        content = text[:-_SUFFIX] + "}"
        if self.unchained or text != chained(content, str(chain)):
            return f"{name} has no chain as others have it"
        if sequence not in range(len(seen) + 1):
            return f"{name} comes after fact {len(seen) - 1}"
        follows = chain == link(seen[sequence - 1] if sequence else "", content)
        if sequence == len(seen):
            seen.append(chain)
        elif chain != seen[sequence]:
            return f"{name} is told in two ways"
        return "" if follows else f"{name} does not follow from the one before: it, or that, was changed"


def seal(ends: Iterable[tuple[str, int, int, str]]) -> dict[str, Any]:
    """The seal of a log, from each writer's (name, incarnation, events, last chain)."""
    writers = [
        {"writer": writer, "incarnation": incarnation, "events": events, "chain": chain}
        for writer, incarnation, events, chain in ends
    ]
    return {"events": sum(each["events"] for each in writers), "writers": writers}


def sealed(run_dir: Path) -> dict[Key, tuple[int, str]] | None:
    """(events, last chain) by writer; None where the run has no seal. Raises ValueError for a damaged one."""
    try:
        record = json.loads((run_dir / SEAL_FILE).read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("format") == 2:
            return None  # orchestrator/eventlog/reader.py reads it
        ends = [_end(each) for each in record["writers"]]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{SEAL_FILE} is damaged: {error!r}") from error
    if len(dict(ends)) < len(ends):
        raise ValueError(f"{SEAL_FILE} is damaged: a writer is in it twice")
    return dict(ends)


def _end(each: dict[str, Any]) -> tuple[Key, tuple[int, str]]:
    writer, incarnation, events, chain = (each[name] for name in ("writer", "incarnation", "events", "chain"))
    if not (type(incarnation) is type(events) is int and events >= 0 and type(writer) is type(chain) is str):
        raise TypeError(f"{str(each)[:120]} is no writer's end")
    return (writer, incarnation), (events, chain)


def differs(chains: Mapping[Key, list[str]], ends: Mapping[Key, tuple[int, str]]) -> str:
    """How a log's chains differ from the seal; empty if they do not."""
    for key, (events, chain) in ends.items():
        seen, name = chains.get(key, []), f"{key[0]} {key[1]}"
        if len(seen) < events:
            return f"{name} has {len(seen)} facts, {events} were sealed"
        if events and seen[events - 1] != chain:
            return f"fact {events - 1} of {name}, its last, is not the one that was sealed"
        if len(seen) > events:
            return f"{name} has {len(seen)} facts, {events} were sealed"
    if strangers := chains.keys() - ends.keys():
        writer, incarnation = min(strangers)
        return f"{writer} {incarnation} was not there when the log was sealed"
    return ""
