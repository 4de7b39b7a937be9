"""Every planted bug is found, at a seed at which the machines without it keep every promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.catching import is_caught, recorded
from tests.simulation.mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
CATCHES = recorded()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    """At the seed recorded, with one of the checks recorded; the machines without it keep every promise there."""
    assert is_caught(MUTANTS[name], CATCHES[name]), "python benchmarks/mutants.py --stale looks for another seed"


def test_the_page_and_the_recorded_runs_name_every_mutant_and_no_other() -> None:
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("|`")]
    assert rows == list(MUTANTS)
    assert set(CATCHES) == set(MUTANTS)
