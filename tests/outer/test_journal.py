"""An append is conditional on (epoch, sequence): two syncers cannot both write."""

from __future__ import annotations

import pytest

from outer.facts import Committed
from outer.journal import MemoryJournal, StaleEpoch


def record(syncer_step: int, fragment: int = 0, epoch: int = 1) -> Committed:
    return Committed(syncer_step, fragment, epoch, 0, (), 1, "digest", 1.0, 8, 0.0, 0.0, 0.0, "")


def test_records_follow_one_another_from_zero() -> None:
    journal = MemoryJournal()
    journal.append(1, 0, record(4), None)
    journal.append(1, 1, record(6, fragment=1), None)
    journal.append(1, 2, record(8), None)
    assert {fragment: kept.syncer_step for fragment, kept in journal.newest.items()} == {0: 8, 1: 6}


@pytest.mark.parametrize(("epoch", "sequence"), [(2, 0), (2, 2), (1, 1), (1, 0), (3, 1)])
def test_what_is_not_the_next_of_the_newest_epoch_changes_nothing(epoch: int, sequence: int) -> None:
    """After (1, 0) and (2, 0): a repetition, a gap, an old epoch, and a new epoch that does not begin at zero."""
    journal = MemoryJournal()
    journal.append(1, 0, record(4), None)
    journal.append(2, 0, record(8), None)
    with pytest.raises(StaleEpoch):
        journal.append(epoch, sequence, record(99), None)
    assert journal.newest[0].syncer_step == 8
    journal.append(2, 1, record(12), None)


def test_a_newer_epoch_takes_over_and_the_old_one_is_shut_out() -> None:
    journal = MemoryJournal()
    for sequence in range(3):
        journal.append(1, sequence, record(sequence), None)
    journal.append(5, 0, record(10, epoch=5), None)
    with pytest.raises(StaleEpoch, match=r"\(1, 3\)"):
        journal.append(1, 3, record(11), None)
