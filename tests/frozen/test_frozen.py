"""Runs that were frozen: every check, figure and simulated history is what it was (tests/frozen/write.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.frozen import write
from tests.frozen.write import EXPECTED, FOLDERS, SEED_COUNT, SEEDS, said_of

NAMES = sorted(str(path.relative_to(EXPECTED).with_suffix("")) for path in EXPECTED.rglob("*.json"))


def test_every_run_that_can_be_written_is_frozen() -> None:
    assert set(write.folders()) == set(NAMES)


@pytest.mark.parametrize("kind", ["real", "simulated", "planted"])
def test_checks_and_figures_of_a_frozen_run_are_what_they_were(kind: str) -> None:
    names = [name for name in NAMES if name.startswith(kind)]
    assert names
    different = {}
    for name in names:
        before, now = write.written(name), json.loads(json.dumps(said_of(FOLDERS / name)))
        for part in ("verdicts", "summary"):
            keys = before[part].keys() | now[part].keys()
            changed = {key: (before[part].get(key), now[part].get(key)) for key in keys}
            changed = {key: pair for key, pair in changed.items() if pair[0] != pair[1]}
            if changed:
                different[name, part] = changed
    assert not different


@pytest.mark.parametrize("seeds", [range(1, 13), pytest.param(range(13, SEED_COUNT + 1), marks=pytest.mark.full)])
def test_under_any_faults_every_check_passes_and_the_history_is_what_it_was(seeds: range) -> None:
    outcomes = write.played(seeds)
    assert [violation for outcome in outcomes for violation in outcome.violations] == []
    several = sum(len(outcome.fault_counts) >= 3 for outcome in outcomes)
    assert several > 0.8 * len(seeds), "most seeds suffer from several kinds of faults at once"
    before = json.loads(SEEDS.read_text())
    assert write.digests(outcomes) == {str(seed): before[str(seed)] for seed in seeds}


@pytest.mark.full
def test_a_frozen_run_is_computed_again_to_the_bit() -> None:
    command = [sys.executable, "-m", "orchestrator", "replay", str(FOLDERS / write.REPLAYED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode and "perhaps because of python" in said:
        pytest.skip("it was trained on the library of another Python: see what replay says")
    if done.returncode and re.search("perhaps because of (processor|instructions)", said):  # may round otherwise
        differs = re.search(r"first difference: .* the loss of .* recorded ([\d.]+), found ([\d.]+)", said)
        assert differs, said
        assert float(differs[1]) == pytest.approx(float(differs[2]), rel=1e-5), said
    else:
        assert done.returncode == 0, said
