"""Runs a mutant and its sound twin by seed, and says which promises the mutant breaks. Knows no mutant by name."""

from __future__ import annotations

import gc
import json
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from chaos.simulation.checks.oracle import Violation
from chaos.simulation.cluster import Outcome, play
from chaos.simulation.profile import SYNCER_STEPS, draw
from tests.simulation.planting import Mutant

CATCHES = Path(__file__).with_name("catches.json")
UNKNOWN = "unknown: "
MISFIT = re.compile("AttributeError|NameError|TypeError")
HANG_S = 20.0  # of CPU time; no seed takes so long, but a bug may, and fill the memory meanwhile
COLLECT = 5  # seeds between two collections of garbage, which costs more than a seed


@dataclass(frozen=True)
class Catch:
    """The first seed at which a mutant breaks a promise, and its twin without the bug none."""

    profile: str
    syncer_steps: int
    seed: int
    promises: tuple[str, ...]  # in the order in which they were found broken
    reason: str  # of the first


def run(seed: int, profile: str, syncer_steps: int = SYNCER_STEPS) -> Outcome:
    return play(draw(seed, profile, syncer_steps=syncer_steps))


@cache
def is_sound(seed: int, profile: str, syncer_steps: int) -> bool:
    """The machines as they are keep every promise at this seed."""
    return not run(seed, profile, syncer_steps).violations


def broken(mutant: Mutant, seed: int, profile: str, syncer_steps: int = SYNCER_STEPS) -> Outcome:
    with mutant.planted(), _deadline():
        return run(seed, profile, syncer_steps)


def found_in(outcome: Outcome) -> list[Violation]:
    """The promises that a mutant breaks, where anything can be told of them.

    Empty if it does not fit the code any more: its own error, as of a name that has gone, would be found always.
    """
    if any(MISFIT.search(each.reason) for each in outcome.violations):
        return []
    return [each for each in outcome.violations if not each.reason.startswith(UNKNOWN)]


def broken_by(mutant: Mutant, seed: int, profile: str, syncer_steps: int) -> set[str]:
    return {each.check for each in found_in(broken(mutant, seed, profile, syncer_steps))}


def is_caught(mutant: Mutant, catch: Catch) -> bool:
    """A recorded run still catches the mutant, and its twin without the bug keeps every promise."""
    run = catch.seed, catch.profile, catch.syncer_steps
    return bool(broken_by(mutant, *run) & set(catch.promises)) and is_sound(*run)


def caught(mutant: Mutant, seed: int, profile: str, syncer_steps: int = SYNCER_STEPS) -> tuple[Catch, Outcome] | None:
    outcome = broken(mutant, seed, profile, syncer_steps)
    found = found_in(outcome)
    if not found or not is_sound(seed, profile, syncer_steps):
        return None
    promises = tuple(dict.fromkeys(violation.check for violation in found))
    return Catch(profile, syncer_steps, seed, promises, found[0].reason), outcome


def first(mutant: Mutant, seeds: Iterable[int], profile: str, syncer_steps: int = SYNCER_STEPS) -> Catch | None:
    with _no_garbage():
        for number, seed in enumerate(seeds):
            if found := caught(mutant, seed, profile, syncer_steps):
                return found[0]
            if number % COLLECT == COLLECT - 1:
                gc.collect()
    return None


def cheapest(mutant: Mutant, seeds: Iterable[int], profiles: Iterable[str], syncer_steps: int) -> Catch | None:
    """Of the first catch in each profile the one that gives the machines the least to do."""
    found: list[tuple[int, Catch]] = []
    with _no_garbage():
        for profile in profiles:
            for seed in seeds:
                if one := caught(mutant, seed, profile, syncer_steps):
                    found.append((one[1].events, one[0]))
                    break
            gc.collect()
    return min(found, key=lambda each: each[0])[1] if found else None


def recorded() -> dict[str, Catch]:
    """Of each mutant a short run that catches it."""
    entries: dict[str, Any] = json.loads(CATCHES.read_text()) if CATCHES.exists() else {}
    return {name: Catch(**entry | {"promises": tuple(entry["promises"])}) for name, entry in entries.items()}


def record(catches: dict[str, Catch]) -> None:
    entries = {name: asdict(catch) for name, catch in sorted(catches.items())}
    written = CATCHES.with_suffix(".tmp")
    written.write_text(json.dumps(entries, indent=1) + "\n")
    written.replace(CATCHES)  # others may be reading it


@contextmanager
def _deadline() -> Iterator[None]:
    """A machine that never comes back from an event raises, and that is found as any other raising is."""

    def raise_timeout(number: int, frame: Any) -> None:
        raise TimeoutError(f"no end after {HANG_S:.0f} s")

    before = signal.signal(signal.SIGPROF, raise_timeout)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _no_garbage() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
