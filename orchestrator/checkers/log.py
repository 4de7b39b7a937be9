"""log.*: the log is complete and unaltered, says once how the run ended, and belongs to the recipe beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from orchestrator.accounting.history import History
from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunResumed, RunStarted
from orchestrator.eventlog.seal import SEAL_FILE, Chains, Key, differs, sealed
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import hash_in
from orchestrator.store.readers import RECIPE_FILE
from outer.protocol.facts import Finished

LOG_FILE = "events.jsonl"
CHAIN = "every fact follows from the one that its writer said before"
SEAL = "the log holds every writer's facts up to the last that was sealed, and so do the segments; no others"
UNKNOWN = [
    Verdict("log.chain", CHAIN, "unknown", "there is no log to read"),
    Verdict("log.seal", SEAL, "unknown", "there is no log to read"),
]


def check(history: History) -> list[Verdict]:
    return [_sequence(history), _ending(history)]


def _sequence(history: History) -> Verdict:
    """Copies of one event, in different segments, must be identical."""
    failures: list[str] = []
    for key, events in history.said.items():
        numbers = [event.sequence for event in events]
        if numbers != list(range(len(numbers))):
            failures += _gaps(f"{key[0]} {key[1]}", events)
    claim = "each writer's facts are numbered from 0 without a gap, and each number is one fact"
    return judge("log.sequence", claim, len(history.events), "events", failures)


def _gaps(name: str, events: Sequence[Event]) -> Iterator[str]:
    said: dict[int, Event] = {}
    for event in events:
        first = said.setdefault(event.sequence, event)
        if first is not event and first != event and first.content != event.content:  # NaN is like NaN
            yield f"{name} says two things as its fact {event.sequence}"
    for before, number in pairwise([-1, *sorted(said)]):
        if number != before + 1:
            yield f"{name} goes from fact {before} to fact {number}"


def _ending(history: History) -> Verdict:
    endings, finished = history.of(RunFinished), history.of(Finished)
    failures: list[str] = []
    if finished and not endings:
        failures.append(f"the syncer finished at step {finished[-1].fact.syncer_step}, but the run never did")
    if len(endings) > 1 + len(history.of(RunResumed)):
        failures.append(f"the run finished {len(endings)} times, and was resumed {len(history.of(RunResumed))} times")
    failures += [
        "the run is called finished, but its syncer never reached the budget"
        for said in endings
        if said.fact.state == "finished" and not finished
    ]
    claim = "a run that reached its budget ends with one RunFinished, and only such a run is called finished"
    return judge("log.ending", claim, len(endings), "end of the run", failures)


# ------------------------------------------------------------------ the recipe beside the log


def check_recipe(run_dir: Path, events: Iterable[Event]) -> Verdict:
    """Whether config.toml matches the config hash in the log's most recent RunStarted event. Reads the file's values
    as they are: a later version's defaults do not matter.
    """
    name, claim = "log.recipe", "config.toml has the config hash of the log's most recent RunStarted"
    begun = [event.fact.config_hash for event in events if isinstance(event.fact, RunStarted)][-1:]
    path = run_dir / RECIPE_FILE
    if not begun or not path.is_file():
        lacking = f"no {RECIPE_FILE} is in the folder" if begun else "the log does not say with which the run was begun"
        return Verdict(name, claim, "unknown", lacking)
    try:
        here = hash_in(path)
    except InputError as error:
        return Verdict(name, claim, "violated", f"{RECIPE_FILE} {error.problems[0].message}")
    told = f"{RECIPE_FILE} has the config hash {here}, the run was begun with {begun[0]}"
    return judge(name, claim, 1, "recipe", [] if begun == [here] else [told])


# ------------------------------------------------------------------ chains and seal


def check_seal(run_dir: Path) -> list[Verdict]:
    """Whether anything in a run's folder was changed, dropped, inserted or swapped since it was written.

    Reads the lines themselves. What was lost before it reached a file is not seen here, nor a forger who rewrites the
    chains and the seal together. A log without chains, or a run without its end, is unknown. Raises OSError.
    """
    merged = _read([path for path in [run_dir / LOG_FILE] if path.exists()])
    segments = _read(sorted((run_dir / "events").glob("*.jsonl")))
    return [_chain([each for each in (merged, segments) if each is not None]), _seal(run_dir, merged, segments)]


def _read(paths: Sequence[Path]) -> Chains | None:
    chains = Chains()
    for path in paths:
        chains.read(path)
    return chains if paths else None


def sealed_facts(run_dir: Path) -> dict[Key, int] | None:
    """How many facts of each writer are sealed; None where the seal is missing or damaged."""
    try:
        ends = sealed(run_dir)
    except ValueError:
        return None
    return None if ends is None else {key: events for key, (events, _) in ends.items()}


def _chain(read: Sequence[Chains]) -> Verdict:
    failures = [each.broken for each in read if each.broken]
    if not failures and any(each.unchained for each in read):
        return Verdict("log.chain", CHAIN, "unknown", "the log has no chains: it is from before they were written")
    return judge("log.chain", CHAIN, sum(each.events for each in read), "lines", failures)


def _seal(run_dir: Path, merged: Chains | None, segments: Chains | None) -> Verdict:
    """A sealed run has its merged log. Segments may be gone; those that exist hold the same events."""
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
