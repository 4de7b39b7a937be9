"""The log under the two faults that used to silence learners: its newest groups lost, and an epoch that thaws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.simulation.cluster import Outcome, play
from chaos.simulation.profile import Fault, draw

STEPS = 60  # of the syncer


def run(seed: int, kind: str) -> Outcome:
    options = draw(seed, "mixed", syncer_steps=STEPS)
    return play(replace(options, faults=(Fault(0.3 * options.storm_s, kind, "", 1.0, 0.9),)))


def struck(kind: str, runs: int) -> list[Outcome]:
    """The first so many runs in which the fault had an effect, by seed."""
    found: list[Outcome] = []
    seed = 0
    while len(found) < runs:
        seed += 1
        outcome = run(seed, kind)
        found += [outcome] if outcome.fault_counts.get(kind) else []
    return found


@pytest.mark.parametrize("runs", [10, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["tail_lost", "zombie"])
def test_nobody_is_silenced_and_every_lost_fact_is_named(kind: str, runs: int) -> None:
    """The checks `facts.*` and `bounds.silent` are among those that hold."""
    outcomes = struck(kind, runs)
    assert [violation for outcome in outcomes for violation in outcome.violations] == []
    named = sum(outcome.facts.get("FactsLost", 0) > 0 for outcome in outcomes)
    assert named > runs // 2 if kind == "tail_lost" else named == 0
