"""The simulator's checks that no planted bug breaks find what breaks them: test_mutants.py shows it of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import learners.protocol.adoption
import outer.protocol.open_step
from chaos.simulation.checks.provenance import Content, Range, ValueVersion, counts, rebased, uneven
from chaos.simulation.cluster import Outcome, play
from chaos.simulation.profile import Fault, draw
from outer.protocol.messages import Contribution
from outer.protocol.syncer import Syncer


def run(faults: tuple[Fault, ...] = (), **sync: Any) -> Outcome:
    given = {"P": 2, "H": 4, "tau": 1, "adopt": "overwrite", "pacing": "clock", "participants": "eligible"}
    options = replace(draw(1, "calm", syncer_steps=40, **(given | sync)), quorum=2, faults=faults, storm_s=12.0)
    return play(options)


def broken(faults: tuple[Fault, ...] = (), **sync: Any) -> set[str]:
    return {violation.check for violation in run(faults, **sync).violations}


def test_as_they_are_the_machines_break_nothing() -> None:
    assert broken() == set() and broken(adopt="rebase") == set()


def test_an_answer_that_cannot_be_right_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    garbled = (Fault(3.0, "garbled", "all", 9.0, 0.5),)
    assert broken(garbled) == set()

    def lenient(contribution: Contribution, *given: Any) -> str:
        return contribution.defect or ("" if contribution.counters.tokens else "wrong_counters")  # nothing would raise

    monkeypatch.setattr(outer.protocol.open_step, "unusable", lenient)
    assert {"invariants.refuses", "oracle.refused"} <= broken(garbled)


def test_in_lock_step_a_fragment_is_adopted_at_its_step_and_of_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def lockstep(quorum: int = 4) -> set[str]:
        options = draw(4, "lockstep", syncer_steps=30, P=2, H=4, tau=3)
        options = replace(options, faults=(), storm_s=0.0, quorum=quorum)
        return {violation.check for violation in play(options).violations}

    assert lockstep() == set()
    assert "oracle.lockstep" in lockstep(quorum=1), "who is let in first does not wait for the others"
    monkeypatch.setattr(learners.protocol.adoption.Adoption, "_is_time", lambda *given: True)
    assert "oracle.lockstep" in lockstep()


def test_a_machine_that_raises_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Syncer, "_on_committed", lambda syncer, now, record: 1 / 0)
    assert "shell.raises" in broken()


# ------------------------------------------------------------------ provenance: exact counts of unusual merges

A, B = ("a", 1), ("b", 1)
ZERO = ValueVersion(0, 0, None, ())


def merge(base: ValueVersion, number: int, *contents: Content) -> ValueVersion:
    return ValueVersion(0, number, base, tuple(one for content in contents for one in content.beyond(base)))


def own(unit: tuple[str, int], since: int, step: int, root: ValueVersion = ZERO) -> Content:
    return Content(root, (), unit, since, step)


def test_a_merge_adds_each_participants_own_steps_and_one_that_merges_twice_counts_two() -> None:
    once = merge(ZERO, 4, own(A, 0, 3), own(B, 0, 1))
    assert counts(once.lineage()) == {(A, 1): 1, (A, 2): 1, (A, 3): 1, (B, 1): 1}
    assert not once.odd and once.newest == {A: 3, B: 1}
    twice = merge(once, 8, own(A, 2, 5, once))
    assert twice.odd and uneven(twice.lineage()) == "step 3 of a 1 counts +2"


def test_a_contribution_on_another_base_takes_back_what_it_lacks() -> None:
    once = merge(ZERO, 4, own(A, 0, 2))
    assert own(B, 0, 1).beyond(once) == (Range(B, 0, 1), Range(A, 0, 2, -1)), "it grew from the first value"
    twice = merge(once, 8, own(A, 2, 3, once), own(B, 0, 1))
    assert counts(twice.lineage()) == {(A, 3): 1, (B, 1): 1}, "the earlier commit is gone"
    thrice = merge(twice, 12, own(B, 0, 1), own(B, 0, 1))
    assert uneven(thrice.lineage()) == "step 3 of a 1 counts -1"


def test_rebasing_keeps_what_came_after_the_read_and_by_the_wrong_read_shows_in_the_counts() -> None:
    onto = merge(ZERO, 4, own(A, 0, 3))
    assert rebased(own(A, 0, 5), own(A, 0, 3), onto) == Content(onto, (), A, 3, 5)
    doubled = rebased(own(A, 0, 5), own(A, 0, 1), onto)
    assert uneven([*onto.lineage(), *doubled.ranges]) == "step 2 of a 1 counts +2"
    lost = rebased(own(A, 0, 5), own(A, 0, 3, merge(ZERO, 2, own(B, 0, 1))), onto)
    assert counts(lost.ranges) == {(A, 4): 1, (A, 5): 1, (B, 1): -1}, "what the other had is taken back"
