"""The tape of a run, from its log: the commits, and what they depend on in every incarnation.

Raises TapeError where the log is incomplete or contradicts itself.
"""

from __future__ import annotations

import graphlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from learners.protocol.facts import DeviceTaken, StateReceived
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished, RunStarted
from orchestrator.replay.incarnation import OLDER, IncarnationReader, IncarnationTape, Key, Need, Read, TapeError, named
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


def nothing_computed(tape: Tape) -> bool:
    """Whether nothing was computed when it was recorded."""
    return not any(commit.digest or any(one.digest for one in commit.participants) for commit in tape.commits)


# ------------------------------------------------------------------ from a log


def record(events: Iterable[Event], until: int | None = None) -> Tape:
    """The tape of a log, up to and including syncer step `until`. Raises TapeError."""
    return tape_of(by_writer(events), until)


def tape_of(said: Mapping[Key, Iterable[object]], until: int | None = None) -> Tape:
    """The same from each writer's facts in its own order, as from `by_writer` or `said_in`."""
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


def numbered(events: Iterable[Event]) -> dict[Key, dict[int, Event]]:
    """Every writer's events by number. Raises TapeError where one number is two facts."""
    said: dict[Key, dict[int, Event]] = defaultdict(dict)
    for event in events:
        first = said[event.writer, event.incarnation].setdefault(event.sequence, event)
        if first is not event and first != event and first.to_json() != event.to_json():  # NaN is like NaN
            raise TapeError(f"{named(event.key[:2])}: its fact {event.sequence} is told in two ways")
    return said


def by_writer(events: Iterable[Event]) -> dict[Key, list[object]]:
    """Every writer's facts, in its own order. Raises TapeError for a gap."""
    said = numbered(events)
    for key, facts in said.items():
        if (missing := next((n for n in range(len(facts)) if n not in facts), None)) is not None:
            raise TapeError(f"{named(key)}: its fact {missing} is missing, and later ones are there")
    return {key: [facts[number].fact for number in range(len(facts))] for key, facts in said.items()}


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
        if not received.versions:
            raise TapeError(
                f"{named(joiner)}: its StateReceived does not say which versions the donor held (versions); {OLDER}"
            )
        if donor not in needs:
            waiting.append(donor)
        needs[donor].gives[joiner] = (received.donor_step, received.versions)
        origins[joiner] = [donor]
    try:
        graphlib.TopologicalSorter(origins).prepare()
    except graphlib.CycleError as error:
        raise TapeError(f"these start from each other's states: {', '.join(map(named, error.args[1]))}") from error
    return needs
