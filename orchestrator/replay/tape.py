"""The tape of a run, from its log: the commits, and what they depend on in every incarnation.

Raises TapeError where the log is incomplete or contradicts itself.
"""

from __future__ import annotations

import graphlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from learners.protocol.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.eventlog.tables import LogPart, part_of
from orchestrator.replay.incarnation import IncarnationReader, IncarnationTape, Key, Need, Read, TapeError, named
from outer.protocol.facts import Committed, Participant, SyncerStarted
from outer.protocol.open_step import weight

TOLERANCE = 1e-9  # of a weight; what is less shows in the digests


@dataclass(frozen=True)
class Tape:
    """Everything that decides the parameters after the last of `commits`, independent of clocks."""

    rules: SyncerStarted
    commits: tuple[Committed, ...]  # in the order of syncer steps, each once
    incarnations: Mapping[Key, IncarnationTape]  # those that the commits depend on
    whole: bool  # the run's last commit is among them
    started: RunStarted | None
    finished: RunFinished | None

    @property
    def devices(self) -> dict[Key, DeviceTaken]:
        """The device of each incarnation, where recorded."""
        return {
            key: incarnation.device for key, incarnation in self.incarnations.items() if incarnation.device is not None
        }


def merged_read(rules: SyncerStarted, commit: Committed, one: Participant) -> Read:
    """One participant's part of a commit: grown from the version merged onto, or as many rounds older."""
    base = max(0, commit.base_version - one.age * rules.round_steps) if one.age else commit.base_version
    return Read(commit.fragment, one.step, base)


def merged_reads(tape: Tape) -> dict[tuple[Key, Read], str]:
    """The contributions that go into commits, and their number format; "" is the run's."""
    return {
        ((one.learner, one.incarnation), merged_read(tape.rules, commit, one)): one.codec
        for commit in tape.commits
        for one in commit.participants
    }


# ------------------------------------------------------------------ from a log


def record(events: Iterable[Event], until: int | None = None) -> Tape:
    """The tape of a log, up to and including syncer step `until`. Raises TapeError."""
    return tape_of(said_in([part_of(events)]), until)


def tape_of(said: Mapping[Key, Said], until: int | None = None) -> Tape:
    """The same from each writer's facts."""
    for key, each in said.items():
        each.check(key)
    rules = _rules(said)
    every = _commits(said, rules)
    commits = tuple(commit for commit in every if until is None or commit.syncer_step <= until)
    versions = _versions(commits, rules)
    needs = _needs(rules, commits, said)
    incarnations = {key: IncarnationReader(key, said[key], need, versions).read() for key, need in needs.items()}
    orchestrator = [fact for (writer, _), facts in said.items() if writer == "orchestrator" for fact in facts]
    return Tape(
        rules=rules,
        commits=commits,
        incarnations=incarnations,
        whole=len(commits) == len(every),
        started=next((fact for fact in orchestrator if isinstance(fact, RunStarted)), None),
        finished=next((fact for fact in reversed(orchestrator) if isinstance(fact, RunFinished)), None),
    )


def _rules(said: Mapping[Key, Iterable[object]]) -> SyncerStarted:
    """The first epoch's SyncerStarted; later epochs must have the same fragments."""
    begun = [fact for _, facts in _epochs(said) for fact in facts if isinstance(fact, SyncerStarted)]
    if not begun:
        raise TapeError("no SyncerStarted is in the log: no syncer ever ran")
    for other in begun[1:]:
        if (other.fragments, other.sizes) != (begun[0].fragments, begun[0].sizes):
            raise TapeError(f"epoch {other.epoch} of the syncer has other fragments than epoch {begun[0].epoch}")
    return begun[0]


def _epochs(said: Mapping[Key, Iterable[object]]) -> list[tuple[Key, Iterable[object]]]:
    return sorted((key, facts) for key, facts in said.items() if key[0] == "syncer")


def _commits(said: Mapping[Key, Iterable[object]], rules: SyncerStarted) -> list[Committed]:
    """Every commit once; a later epoch may repeat an earlier one's."""
    by_step: dict[int, Committed] = {}
    for _, facts in _epochs(said):
        for fact in facts:
            if isinstance(fact, Committed) and by_step.setdefault(fact.syncer_step, fact) != fact:
                raise TapeError(f"syncer step {fact.syncer_step} committed in two ways")
    newest = [0] * len(rules.sizes)
    for step, commit in sorted(by_step.items()):
        if not 0 <= commit.fragment < len(newest):
            raise TapeError(f"syncer step {step}: there is no fragment {commit.fragment}")
        if commit.base_version != newest[commit.fragment]:
            raise TapeError(
                f"syncer step {step}: it merges onto version {commit.base_version} of fragment {commit.fragment}, "
                f"whose newest before it is {newest[commit.fragment]}: a commit is missing, or one too many"
            )
        newest[commit.fragment] = step
        _check_weights(commit, rules)
    return [commit for _, commit in sorted(by_step.items())]


def _check_weights(commit: Committed, rules: SyncerStarted) -> None:
    """By the rule that the epoch names, normalised over the commit.

    Of a contribution on an older base at most H steps count, with their tokens.
    """
    where = f"syncer step {commit.syncer_step}"
    if not commit.participants or any(one.steps < 1 or one.tokens < 1 for one in commit.participants):
        raise TapeError(f"{where}: a contribution without steps or tokens, or none at all")
    if any(not 0 <= one.age <= rules.base_window for one in commit.participants):
        raise TapeError(f"{where}: a contribution has a base further behind than base_window = {rules.base_window}")
    raw = []
    for one in commit.participants:
        share = min(1.0, rules.round_steps / one.steps) if one.age else 1
        raw.append(weight(rules.weights, share * one.tokens, share * one.steps, one.age))
    for one, due in zip(commit.participants, raw, strict=True):
        if not abs(one.weight - due / math.fsum(raw)) <= TOLERANCE:
            raise TapeError(
                f"{where}: {one.learner} {one.incarnation} weighs {one.weight!r}, and its counters give "
                f"{due / math.fsum(raw)!r}"
            )


def _versions(commits: Sequence[Committed], rules: SyncerStarted) -> list[set[int]]:
    """The versions of each fragment."""
    versions = [{0} for _ in rules.sizes]
    for commit in commits:
        versions[commit.fragment].add(commit.syncer_step)
    return versions


# ------------------------------------------------------------------ who is needed, and when


def _needs(rules: SyncerStarted, commits: Sequence[Committed], said: Mapping[Key, Iterable[object]]) -> dict[Key, Need]:
    """The needs of all contributors, of the donors of their initial states, and so on."""
    needs: dict[Key, Need] = defaultdict(Need)
    for commit in commits:
        for one in commit.participants:
            key, read = (one.learner, one.incarnation), merged_read(rules, commit, one)
            if key not in said:
                raise TapeError(f"syncer step {commit.syncer_step}: the log holds no word of {named(key)} itself")
            if read in needs[key].reads:
                raise TapeError(f"syncer step {commit.syncer_step}: {named(key)} had merged into it before")
            needs[key].reads[read] = (commit.syncer_step, one)
    origins: dict[Key, list[Key]] = {}
    waiting = list(needs)
    while waiting:
        joiner = waiting.pop()
        received = next((fact for fact in said[joiner] if isinstance(fact, StateReceived)), None)
        origins[joiner] = []
        if received is None or received.source != "peer":
            continue
        donor = (received.donor, received.donor_incarnation)
        if donor not in said:
            raise TapeError(f"{named(joiner)} starts from the state of {named(donor)}, of which the log holds no word")
        if donor not in needs:
            waiting.append(donor)
        needs[donor].gives[joiner] = (received.donor_step, received.versions)
        origins[joiner] = [donor]
    try:
        graphlib.TopologicalSorter(origins).prepare()
    except graphlib.CycleError as error:
        raise TapeError(f"these start from each other's states: {', '.join(map(named, error.args[1]))}") from error
    return needs


# ------------------------------------------------------------------ the facts of each writer

KEPT = (Committed, DeviceTaken, RunFinished, RunStarted, Spoiled, StateReceived, SyncerStarted)
COLUMNS = {
    "steps": ["sequence", "step", "tokens", "sample", "loss", "progress"],
    "adoptions": ["sequence", "fragment", "version", "after_step", "mode", "read_at"],
}


class Said(Iterable[object]):
    """One writer's facts, in order. A fact that a replay does not need is left out; so are a step's durations."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in COLUMNS}
        self._objects: dict[int, object] = {}  # by sequence
        self._others: list[int] = []  # the sequences of facts that are left out

    def add(self, sequence: int, fact: object) -> None:
        if isinstance(fact, KEPT) and sequence not in self._objects:  # else `check` finds it twice
            self._objects[sequence] = fact
        else:
            self._others.append(sequence)

    def add_rows(self, name: str, rows: pa.Table) -> None:
        self._tables[name].append(rows)

    def check(self, key: Key) -> None:
        """Raises TapeError where a fact is missing, or there twice."""
        columns = [rows["sequence"].to_numpy() for tables in self._tables.values() for rows in tables]
        numbers = np.sort(np.concatenate([*columns, np.array([*self._objects, *self._others], np.int64)]))
        wrong = np.flatnonzero(numbers != np.arange(len(numbers)))
        if len(wrong):
            first = int(wrong[0])
            if numbers[first] < first:
                raise TapeError(f"{named(key)}: its fact {numbers[first]} is told twice")
            raise TapeError(f"{named(key)}: its fact {first} is missing, and later ones are there")

    def __iter__(self) -> Iterator[object]:
        steps = ((number, _step(*values)) for number, *values in self._rows("steps"))
        adoptions = ((number, Adopted(*values)) for number, *values in self._rows("adoptions"))
        return map(itemgetter(1), merge(steps, adoptions, sorted(self._objects.items()), key=itemgetter(0)))

    def _rows(self, name: str) -> Iterator[tuple[Any, ...]]:
        if not self._tables[name]:
            return iter(())
        columns = pa.concat_tables(self._tables[name]).sort_by("sequence").columns
        return zip(*(column.to_pylist() for column in columns), strict=True)


def _step(step: int, tokens: int, sample: int, loss: float, progress: float | None) -> StepFinished:
    return StepFinished(step, tokens, 0, sample, loss, 0.0, 0.0, "", progress, None)


def said_in(parts: Iterable[LogPart]) -> dict[Key, Said]:
    """Return the facts of each writer of a log."""
    said: dict[Key, Said] = defaultdict(Said)
    for part in parts:
        for name, columns in COLUMNS.items():
            for key, rows in part.by_learner(name):
                said[key].add_rows(name, rows.select(columns))
        for event in part.only(("commits", "contributions", "facts")).events():
            said[event.writer, event.incarnation].add(event.sequence, event.fact)
    return dict(said)
