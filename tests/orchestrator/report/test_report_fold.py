"""The report's fold: the same however the log is cut, and no larger for a longer log."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from learners.protocol.facts import LoopFailed
from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.fold import drive
from orchestrator.eventlog.block import Block, PlacedEvent, block_of
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, FaultHealed, FaultInjected, FaultSkipped
from orchestrator.report import fold as fold_module
from orchestrator.report import series
from orchestrator.report.fold import COLUMNS, ReportFold
from orchestrator.report.series import KEPT, BoundedTally, Ends, Series, Thinned
from outer.protocol.facts import LearnerFenced, Refused
from tests.orchestrator.histories import BASE, history, restarted
from tests.orchestrator.report.test_report_data import blocks, data, folded


def own(state: Any) -> list[Any]:
    """A dataclass's fields, without the folds that others share."""
    return [getattr(state, each.name) for each in fields(state) if each.name != "accounts"]


def plain(state: Any) -> Any:
    """A fold's state as nested values, numbers rounded: sums may be added up in another order."""
    if is_dataclass(state):
        return [type(state).__name__, *(plain(part) for part in own(state))]
    if isinstance(state, np.ndarray):
        return plain(state.tolist())
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple, deque)):
        return [plain(value) for value in state]
    return pytest.approx(state, nan_ok=True) if isinstance(state, float) else state


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_however_the_log_is_cut_into_blocks_the_result_is_the_same(rows: int) -> None:
    events = restarted(history())
    assert plain(folded(blocks(events, rows))) == plain(folded(blocks(events)))


def size(state: Any) -> int:
    """The numbers and texts in a state."""
    if is_dataclass(state):
        return sum(map(size, own(state)))
    if isinstance(state, np.ndarray):
        return state.size
    if isinstance(state, dict):
        return sum(1 + size(value) for value in state.values())
    return sum(map(size, state)) if isinstance(state, (list, tuple, deque)) else 1


def later(block: Block, turn: int) -> Block:
    """The same stretch of a run `turn` stretches later, and facts of kinds of which there is no end."""
    rows, steps, commits = block.rows * turn, 40 * turn, int(block.commits.syncer_step.max()) * turn
    at, moved = 40.0 * turn, block.steps.source
    names = np.array([f"because of {chr(0x4E00 + turn)}"] * len(block.commits.at), object)
    aux = np.array([{f"name {turn}": 1.0}] * len(moved), object)
    strange = [
        Refused("a", turn, "contribution", f"reason {turn}"),
        LoopFailed(turn, "no " * 9000),
        FaultSkipped("kill", "b", f"gone {turn}"),
        FaultInjected(turn, "kill", "a", turn, 1, 0.0),
        FaultHealed(turn, "a"),
        LearnerFenced("c", turn + 3, "killed"),
        Evaluated(commits, 2.0, 0),
    ]
    mine = [placed._replace(position=placed.position + rows) for placed in block.others]
    events = [PlacedEvent(rows + block.stop - 1, Event("syncer", 1, 0, BASE + at, fact)) for fact in strange]
    return replace(
        block,
        start=block.start + rows,
        sources=tuple((name, number + 2 * turn) for name, number in block.sources),
        steps=block.steps._replace(position=block.steps.position + rows, at=block.steps.at + at, aux=aux),
        adoptions=block.adoptions._replace(
            position=block.adoptions.position + rows,
            at=block.adoptions.at + at,
            version=block.adoptions.version + commits,
        ),
        commits=block.commits._replace(
            position=block.commits.position + rows,
            at=block.commits.at + at,
            syncer_step=block.commits.syncer_step + commits,
            tokens_committed=block.commits.tokens_committed + steps,
            reason=names,
        ),
        others=(*mine, *events),
    )


def test_the_fold_is_no_larger_for_a_longer_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "KEPT", 4096)
    monkeypatch.setattr(fold_module, "FAULTS_KEPT", 256)
    stretch, accounts, most = block_of(history()), Accounts(), [0, 0]
    fold = ReportFold(accounts)
    assert stretch.commits.fragment.size == 16
    for turn in range(1024):
        drive([accounts.records, fold], [later(stretch, turn)])
        if turn >= 256 and turn % 64 == 0:  # bins are halved at every doubling of the run: compare whole doublings
            most[turn >= 512] = max(most[turn >= 512], size(fold))
    assert most[1] < 1.02 * most[0]
    taken = fold.rounds.rounds(("a", "b", "c"))
    assert taken is not None and len(taken.commits) <= COLUMNS < taken.count
    assert sum(taken.commits) == fold.curve.count == fold.waits[0].count == 16 * 1024
    assert (fold.failures.count, fold.failures.left_out) == (1024, 1019)
    assert sum(fold.refusals.counts.values()) == 1024


def test_a_long_series_is_kept_as_bins_with_all_its_numbers() -> None:
    rng = np.random.default_rng(1)
    xs = np.arange(20.0 * KEPT)
    ys = rng.normal(5.0, 1.0, len(xs)) + xs / KEPT
    long = Series(240, 8)
    for start in range(0, len(xs), 10_007):
        long.take(xs[start : start + 10_007], ys[start : start + 10_007])
    bins = long.bins()
    assert 120 <= len(bins) <= 240 and long.rows is None
    assert sum(bin.count for bin in bins) == len(xs)
    assert {bin.count for bin in bins[:-1]} == {long.size}
    for bin, first in zip(bins, range(0, len(xs), long.size), strict=True):
        of = ys[first : first + long.size]
        assert bin.x == pytest.approx(xs[first : first + long.size].mean())
        assert bin.columns[0].median == pytest.approx(np.median(of), rel=0.01)
        assert bin.columns[0].middle(0.9) == pytest.approx(np.quantile(of, 0.9), rel=0.015)


def test_a_long_line_is_thinned_evenly_and_keeps_its_last_point() -> None:
    line = Thinned(100)
    for first in range(0, 5_003, 7):
        points = np.arange(first, min(first + 7, 5_003))
        line.take(points, points**2)
    rows = line.all()
    assert len(rows) <= 101
    assert rows[:-1, 0].tolist() == [line.every * place for place in range(len(rows) - 1)]
    assert rows[-1].tolist() == [5_002, 5_002**2]


def test_ends_and_tallies_say_what_they_leave_out() -> None:
    ends, tally = Ends(2, 3), BoundedTally(2)
    for number in range(10):
        ends.take(number)
        tally.take(("refused", str(number)))
    assert (ends.all(), ends.left_out) == ([0, 1, 7, 8, 9], 5)
    assert tally.counts == {("refused", "0"): 1, ("refused", "1"): 1, ("other", "other"): 8}


def test_what_a_later_epoch_repeats_counts_once() -> None:
    once, twice = data(), data(restarted(history()))
    assert twice.waits[0].count == once.waits[0].count
    assert twice.rounds == once.rounds
    assert [link.up for link in twice.links] == [link.up for link in once.links]
