"""The tape of a run, from its log: the commits, and what they depend on in every incarnation.

A log that passed the checks (orchestrator/analysis) does not contradict itself. Raises TapeError where it lacks what a
commit depends on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any

import pyarrow as pa

from learners.protocol.facts import Adopted, DeviceTaken, Spoiled, StateReceived, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.eventlog.tables import LogPart, part_of
from orchestrator.replay.incarnation import IncarnationReader, IncarnationTape, Key, Need, Read, TapeError
from outer.protocol.facts import Committed, Participant, SyncerStarted


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
    rules = _rules(said)
    every = _commits(said)
    commits = tuple(commit for commit in every if until is None or commit.syncer_step <= until)
    fragments = len(rules.sizes)
    needs = _needs(rules, commits, said)
    incarnations = {
        key: IncarnationReader(key, said.get(key, ()), need, fragments).read() for key, need in needs.items()
    }
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
    """The first epoch's SyncerStarted."""
    begun = (fact for facts in _epochs(said) for fact in facts if isinstance(fact, SyncerStarted))
    if (first := next(begun, None)) is None:
        raise TapeError("no SyncerStarted is in the log: no syncer ever ran")
    return first


def _epochs(said: Mapping[Key, Iterable[object]]) -> list[Iterable[object]]:
    return [facts for (writer, _), facts in sorted(said.items()) if writer == "syncer"]


def _commits(said: Mapping[Key, Iterable[object]]) -> list[Committed]:
    """Every commit once; a later epoch may repeat an earlier one's."""
    told = {fact.syncer_step: fact for facts in _epochs(said) for fact in facts if isinstance(fact, Committed)}
    return [commit for _, commit in sorted(told.items())]


# ------------------------------------------------------------------ who is needed, and when


def _needs(rules: SyncerStarted, commits: Sequence[Committed], said: Mapping[Key, Iterable[object]]) -> dict[Key, Need]:
    """The needs of all contributors, of the donors of their initial states, and so on."""
    needs: dict[Key, Need] = defaultdict(Need)
    for commit in commits:
        for one in commit.participants:
            needs[one.learner, one.incarnation].reads[merged_read(rules, commit, one)] = commit.syncer_step
    waiting = list(needs)
    while waiting:
        joiner = waiting.pop()
        received = next((fact for fact in said.get(joiner, ()) if isinstance(fact, StateReceived)), None)
        if received is not None and received.source == "peer":
            donor = (received.donor, received.donor_incarnation)
            if donor not in needs:
                waiting.append(donor)
            needs[donor].gives[joiner] = (received.donor_step, received.versions)
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

    def add(self, sequence: int, fact: object) -> None:
        if isinstance(fact, KEPT):
            self._objects[sequence] = fact

    def add_rows(self, name: str, rows: pa.Table) -> None:
        self._tables[name].append(rows)

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
