"""All interleavings of a small model of the log: nothing acknowledged is lost in silence, nobody is silenced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.simulation.chain_model import SYNCER, Model, Rules, State, search


def wrong(model: Model, state: State) -> str:
    """What is wrong with the log in this state; empty if nothing is."""
    groups = model.chain(state.store)
    if any(a.epoch > b.epoch for a, b in pairwise(groups)):
        return "a fact of a deposed epoch is accepted"
    covered: dict[tuple[int, int], int] = {}
    for entry in model.entries(state.store):
        key = (entry.writer, entry.incarnation)
        if entry.first != covered.get(key, 0):
            return f"{entry} is not the next of its writer"
        covered[key] = entry.last + 1
        if entry.lost:
            writer = state.learners[entry.writer]
            if entry.incarnation == writer.incarnation and entry.last >= writer.oldest:
                return f"{entry} is named as lost, and its writer has it"
    if state.losses:
        return ""  # a lost object takes facts along; `unhealed` says that they are named
    promised = {(SYNCER, e): each for e, each in enumerate(state.announced)}
    for n, learner in enumerate(state.learners):
        promised[n, learner.incarnation] = learner.acknowledged
        promised[n, learner.incarnation - 1] = learner.former
    for key, count in promised.items():
        if covered.get(key, 0) < count:
            return f"{key} was acknowledged {count} facts, and the log has {covered.get(key, 0)}"
    return ""


def unhealed(model: Model, state: State, successor: bool) -> str:
    """What is still wrong once nothing goes wrong any more; empty if nothing is."""
    after = model.heal(state, successor)
    covered = {(each.writer, each.incarnation): each.last + 1 for each in model.entries(after.store)}
    for n, learner in enumerate(after.learners):
        if covered.get((n, learner.incarnation), 0) < learner.made:
            return f"learner {n} is silenced, or facts are lost in silence"
        if learner.oldest < learner.made:
            return f"learner {n} is not acknowledged"
    return wrong(model, after)


def faults(rules: Rules) -> Iterator[tuple[int, str]]:
    """(states searched so far, what is wrong and the way there) for each state in which something is; then the end."""
    model, healed, count = Model(rules), set(), 0
    for count, (state, way) in enumerate(search(model), 1):
        found = [wrong(model, state)]
        ways = [True, False] if state.epochs[-1] is not None and not state.losses else [True]
        for successor in ways:
            key = (state.store, state.learners, successor or state.epochs[-1])
            if key not in healed:
                healed.add(key)
                found.append(unhealed(model, state, successor))
        yield from ((count, f"{each}, after\n{way}") for each in found if each)
    yield count, ""


WORLDS = {
    "two learners": Rules(facts=1),
    "three epochs": Rules(learners=1, epochs=3, message=2),
    "a lost object": Rules(facts=1, losses=1, says=0),
    "a full buffer and a lost object": Rules(learners=1, facts=2, buffer=1, losses=1, says=0),
    "a new incarnation and a lost object": Rules(learners=1, facts=1, losses=1, restarts=1, says=0),
}


@pytest.mark.parametrize(
    "world", [pytest.param(name, marks=pytest.mark.full) if name == "two learners" else name for name in WORLDS]
)
def test_nothing_acknowledged_is_lost_in_silence_and_nobody_is_silenced(world: str) -> None:
    states, fault = next(faults(WORLDS[world]))
    assert not fault
    assert states > 1000, "the search ended early"


ONE = Rules(learners=1)
PLANTED = {
    "only the next number is taken, and a frozen epoch acknowledges before it knows that it is deposed": (
        replace(ONE, names_gaps=False, acknowledges_durable=False),
        "is silenced",
    ),
    "only the next number is taken, and the newest group is lost": (
        replace(ONE, names_gaps=False, losses=1),
        "is silenced",
    ),
    "only the next number is taken, and a buffer is full": (replace(ONE, names_gaps=False, buffer=1), "is silenced"),
    "facts are acknowledged before they are durable": (replace(ONE, acknowledges_durable=False), "was acknowledged"),
    "a deposed epoch writes behind its successor": (replace(ONE, fenced=False), "deposed"),
    "a successor does not know which gaps are recorded": (replace(ONE, counts_gaps=False, losses=1), "not the next"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_the_search_finds_a_planted_fault(planted: str) -> None:
    rules, expected = PLANTED[planted]
    found = (fault for _, fault in faults(rules))
    assert any(expected in fault for fault in found)
