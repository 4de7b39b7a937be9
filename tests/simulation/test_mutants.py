"""Every planted bug is found, at a seed at which the machines without it keep every promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.catching import broken_by, is_sound, recorded
from tests.simulation.mutants import MUTANTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
CATCHES = recorded()
MISFIT = re.compile("AttributeError|NameError|TypeError")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    """At the seed recorded, with one of the checks recorded."""
    catch = CATCHES[name]
    run = catch.seed, catch.profile, catch.syncer_steps
    renew = f"python benchmarks/mutants.py --only {name} --write"
    assert broken_by(MUTANTS[name], *run) & set(catch.promises), f"not found at its seed; {renew} looks for another"
    assert is_sound(*run), f"the machines without the bug fail a check; once they do not: {renew}"


def test_no_bug_is_found_because_it_does_not_fit_the_code_any_more() -> None:
    """Its own error in place of the bug, as of a name that has gone, would be found always, and prove nothing."""
    assert not {name: each.reason for name, each in CATCHES.items() if MISFIT.search(each.reason)}


def test_the_page_and_the_recorded_runs_name_every_mutant_and_no_other() -> None:
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("|`")]
    assert rows == list(MUTANTS)
    assert set(CATCHES) == set(MUTANTS)
