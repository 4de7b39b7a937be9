"""Every planted bug is found, at a seed at which the machines without it keep every promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.catching import broken_by, is_sound, recorded
from tests.simulation.mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
CATCHES = recorded()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    catch = CATCHES[name]
    run = catch.seed, catch.profile, catch.syncer_steps
    found = broken_by(MUTANTS[name], *run)
    assert found & set(catch.promises), f"python benchmarks/mutants.py --only {name} --write looks for another seed"
    assert is_sound(*run), "the machines without the bug break a promise there too"


def test_the_page_and_the_recorded_runs_name_every_mutant_and_no_other() -> None:
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows == list(MUTANTS)
    assert set(CATCHES) == set(MUTANTS)
