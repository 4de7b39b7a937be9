"""log.*: the log is complete and unaltered, says once how the run ended, and belongs to the recipe beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.accounting.verdicts import Verdict, judge
from orchestrator.eventlog import reader
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.chain_reader import Numbering
from orchestrator.eventlog.compactor import segments_folder
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunResumed, RunStarted
from orchestrator.eventlog.seal import SEAL_FILE, Chains, Key, differs, sealed
from orchestrator.eventlog.segments import by_writer
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import hash_in
from orchestrator.store.readers import RECIPE_FILE
from outer.journal.saving import saved
from outer.protocol.facts import Finished

saved(Numbering)

LONG = 24  # segments: about 1.5 million facts
LOG_FILE = "events.jsonl"
READABLE = "the log is there, and every part of it is as it was written"
CHAIN = "every part of the log follows from the one before it: none is missing, inserted or in another's place"
SEAL = "the log ends where it was sealed"
SEQUENCE = (
    "each writer's facts are numbered from 0 without a gap that the log does not name, and each number is one fact"
)
ENDING = "a run that reached its budget ends with one RunFinished, and only such a run is called finished"
UNKNOWN = [
    Verdict("log.chain", CHAIN, "unknown", "there is no log to read"),
    Verdict("log.seal", SEAL, "unknown", "there is no log to read"),
]


@saved
class LogCheck:
    """log.sequence and log.ending, as a fold."""

    def __init__(self) -> None:
        self._numbering = Numbering()
        self._facts = self._ended = self._ended_finished = self._resumed = 0
        self._finished_at: int | None = None  # the syncer step
        self.config_hash: str | None = None  # of the most recent RunStarted

    def take(self, block: Block) -> None:
        self._numbering.take(block)
        self._facts += block.rows
        for _, event in block.others:
            match event.fact:
                case RunStarted(config_hash=here):
                    self.config_hash = here
                case RunFinished(state=state):
                    self._ended += 1
                    self._ended_finished += state == "finished"
                case RunResumed():
                    self._resumed += 1
                case Finished(syncer_step=step):
                    self._finished_at = step

    def verdicts(self) -> list[Verdict]:
        sequence = judge("log.sequence", SEQUENCE, self._facts, "events", self._numbering.broken())
        return [sequence, judge("log.ending", ENDING, self._ended, "end of the run", [*self._endings()])]

    def _endings(self) -> Iterator[str]:
        if self._finished_at is not None and not self._ended:
            yield f"the syncer finished at step {self._finished_at}, but the run never did"
        if self._ended > 1 + self._resumed:
            yield f"the run finished {self._ended} times, and was resumed {self._resumed} times"
        if self._ended_finished and self._finished_at is None:
            yield "the run is called finished, but its syncer never reached the budget"


def told_twice(events: Iterable[Event]) -> str:
    """The first number that stands for two different facts, in copies of one log; empty if there is none."""
    for (writer, incarnation), told in by_writer(events).items():
        said: dict[int, Event] = {}
        for event in told:
            first = said.setdefault(event.sequence, event)
            if first is not event and first != event and first.content != event.content:  # NaN is like NaN
                return f"{writer} {incarnation} says two things as its fact {event.sequence}"
    return ""


# ------------------------------------------------------------------ the recipe beside the log


def check_recipe(run_dir: Path, events: Iterable[Event]) -> Verdict:
    begun = [event.fact.config_hash for event in events if isinstance(event.fact, RunStarted)]
    return recipe_verdict(run_dir, begun[-1] if begun else None)


def recipe_verdict(run_dir: Path, begun: str | None) -> Verdict:
    """Whether config.toml matches the config hash in the log's most recent RunStarted event. Reads the file's values
    as they are: a later version's defaults do not matter.
    """
    name, claim = "log.recipe", "config.toml has the config hash of the log's most recent RunStarted"
    path = run_dir / RECIPE_FILE
    if begun is None or not path.is_file():
        lacking = "the log does not say with which the run was begun" if begun is None else f"no {RECIPE_FILE} is here"
        return Verdict(name, claim, "unknown", lacking)
    try:
        here = hash_in(path)
    except InputError as error:
        return Verdict(name, claim, "violated", f"{RECIPE_FILE} {error.problems[0].message}")
    told = f"{RECIPE_FILE} has the config hash {here}, the run was begun with {begun}"
    return judge(name, claim, 1, "recipe", [] if begun == here else [told])


# ------------------------------------------------------------------ a run's folder


def is_older(run_dir: Path) -> bool:
    """Whether an older version wrote this log, as lines of JSON, and no newer one has gone on with it."""
    lines = (run_dir / LOG_FILE).exists() or any((run_dir / "events").glob("*.jsonl"))
    with contextlib.suppress(ValueError):
        lines = lines or ((run_dir / SEAL_FILE).exists() and reader.sealed(run_dir) is None)
    return lines and not reader.store_of(run_dir).folders("log")


class LogFolder:
    """Read `blocks` to their end, then ask for `verdicts`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.reader = reader.LogReader(run_dir)

    def blocks(self) -> Iterator[Block]:
        """Raises OSError."""
        return self.reader.rest()

    @property
    def long(self) -> bool:
        """Whether it pays to read it in several processes. Raises OSError."""
        return len(reader.store_of(self._run_dir).names(segments_folder(reader.SYNCER))) >= LONG

    @property
    def readable(self) -> bool:
        return not self.reader.findings.unreadable

    def verdicts(self, config_hash: str | None) -> list[Verdict]:
        """`config_hash`: of the log's most recent RunStarted; None: there is none."""
        found = self.reader.findings
        facts, recipe = self.reader.rows, recipe_verdict(self._run_dir, config_hash)
        readable = judge("log.readable", READABLE, facts, "facts", found.unreadable)
        if not facts and not found.unreadable:
            nothing = f"no events in {self._run_dir}"
            unread = [
                Verdict(name, claim, "unknown", nothing) for name, claim in (("log.chain", CHAIN), ("log.seal", SEAL))
            ]
            return [Verdict("log.readable", READABLE, "unknown", nothing), *unread, recipe]
        if found.unknown:
            told = f"{found.unknown} facts are of kinds that this version does not know"
            readable = Verdict("log.readable", READABLE, "unknown", told)
        if not self.readable:
            readable = judge("log.readable", READABLE, facts, "facts", found.unreadable)
        older = check_chains(self._run_dir)
        broken = [*found.unlinked, *([older.reason] if older is not None and older.status == "violated" else [])]
        return [readable, judge("log.chain", CHAIN, facts, "facts", broken), self._seal(facts), recipe]

    def _seal(self, facts: int) -> Verdict:
        try:
            ends = reader.sealed(self._run_dir)
        except ValueError as error:
            return Verdict("log.seal", SEAL, "violated", str(error))
        if ends is None:
            return Verdict("log.seal", SEAL, "unknown", "the run has no seal.json: it did not end, or is an older one")
        told = reader.differs(self.reader, ends)
        return judge("log.seal", SEAL, facts, "sealed facts", [told] if told else [])


# ------------------------------------------------------------------ chains and seal of format 1


def check_seal(run_dir: Path) -> list[Verdict]:
    """Whether anything in a run's folder was changed, dropped, inserted or swapped since it was written.

    Reads the lines themselves. What was lost before it reached a file is not seen here, nor a forger who rewrites the
    chains and the seal together. A log without chains, or a run without its end, is unknown. Raises OSError.
    """
    merged = _read([path for path in [run_dir / LOG_FILE] if path.exists()])
    segments = _read(sorted((run_dir / "events").glob("*.jsonl")))
    return [_chain([each for each in (merged, segments) if each is not None]), _seal(run_dir, merged, segments)]


def check_chains(run_dir: Path) -> Verdict | None:
    """The verdict on the chains of the part that an older version wrote; None if there is none. Raises OSError."""
    read = [
        _read([path for path in [run_dir / LOG_FILE] if path.exists()]),
        _read(sorted((run_dir / "events").glob("*.jsonl"))),
    ]
    return _chain([each for each in read if each is not None]) if any(read) else None


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
