"""In which order a tape's moments are computed: for each commit, what its participants do up to what it read of them.

A process that performs its part of this order and waits for what is missing cannot wait for ever: everything that a
moment needs comes earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.replay.incarnation import Adopt, Give, InheritState, Key, TapeError, named
from orchestrator.replay.tape import Tape, merged_read

Order = tuple[int, int, int]  # number of the participant, over all commits; its stretch; the moment in it
AFTER_STRETCHES = 1 << 62  # as a stretch: behind the participant's, in the contribution and the commit


@dataclass(frozen=True)
class Stretch:
    """An incarnation is to go on to this place in its moments, this one included."""

    key: Key
    place: int
    syncer_step: int  # of the commit that needs it
    number: tuple[int, int]  # the first two of Order


def stretches(tape: Tape) -> Iterator[list[Stretch]]:
    """For each commit what has to be done before it, donors first. Raises TapeError."""
    done: Counter[Key] = Counter()
    number = 0
    for commit in tape.commits:
        before: list[Stretch] = []
        for one in commit.participants:
            key = (one.learner, one.incarnation)
            place = tape.incarnations[key].places[merged_read(tape.rules, commit, one)]
            for found in _up_to(tape, key, place, done):
                _check(tape, *found, commit.syncer_step)
                before.append(Stretch(found[0], found[2], commit.syncer_step, (number, len(before))))
            number += 1
        yield before


def _up_to(tape: Tape, key: Key, place: int, done: Counter[Key]) -> Iterator[tuple[Key, int, int]]:
    """(incarnation, first moment, last moment): this incarnation's, and before it what its donors do."""
    if done[key] > place:
        return
    first, done[key] = done[key], place + 1
    moments = tape.incarnations[key].moments
    for position in range(first, place + 1):
        moment = moments[position]
        if isinstance(moment, InheritState):
            yield from _up_to(tape, moment.donor, tape.incarnations[moment.donor].places[Give(key)], done)
    yield key, first, place


def _check(tape: Tape, key: Key, first: int, last: int, syncer_step: int) -> None:
    for position in range(first, last + 1):
        moment = tape.incarnations[key].moments[position]
        if isinstance(moment, Adopt) and moment.version >= syncer_step:
            version = f"version {moment.version} of fragment {moment.fragment}"
            raise TapeError(f"{named(key)} adopts {version} before it is committed")


def dealt(work: Mapping[str, int], count: int) -> list[list[str]]:
    """Deal learners into at most `count` groups of about equal work: the largest first, to whom has least."""
    groups: Sequence[tuple[list[str], list[int]]] = [([], []) for _ in range(count)]
    for learner in sorted(work, key=lambda name: (-work[name], name)):
        names, steps = min(groups, key=lambda group: sum(group[1]))
        names.append(learner)
        steps.append(work[learner])
    return [names for names, _ in groups if names]
