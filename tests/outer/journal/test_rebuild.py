"""Rebuilding from what is left: the newest value that anybody has, with outer state where there is a choice."""

from __future__ import annotations

import numpy as np

from outer.journal import groups
from outer.journal.groups import Value
from outer.journal.rebuild import CHECKPOINT, INITIAL, JOURNAL, LEARNER, RecoverySource, rebuild, replay_log
from outer.protocol.facts import Committed, SpanGranted
from outer.protocol.recovery import JournalReplay
from tests.outer.journal.records import committed

FRAGMENTS = 3


def commit(step: int, fragment: int) -> Committed:
    return committed(step, fragment, digest=f"digest {step}")


def log() -> JournalReplay:
    """Version 4 of fragment 0, 5 of 1; 2 never committed."""
    records = [SpanGranted("a", 1, 0, 0, 80, 8), *(commit(step, step % 2) for step in range(1, 6))]
    return replay_log([(1 if step < 4 else 2, record) for step, record in enumerate(records)], FRAGMENTS)


def candidate(source: str, version: int, digest: str = "") -> RecoverySource:
    arrays = [np.full(2, version, np.float32)] + ([] if source == LEARNER else [np.zeros(2, np.float32)])
    return RecoverySource(source, Value(version, arrays), digest or f"digest {version}")


def cut(upto: int) -> dict[int, Value]:
    replay = replay_log([(1, commit(step, step % 2)) for step in range(1, upto + 1)], FRAGMENTS)
    return {f: Value(v, [np.full(2, v, np.float32)]) for f, v in enumerate(replay.found.versions) if v}


def test_the_books_are_those_of_the_log_whatever_epoch_said_what() -> None:
    found = log().found
    assert (found.versions, found.tokens_committed) == ([4, 5, 0], 40)
    assert found.batch_sizes == {("a", 1): 8}


def test_the_newest_of_all_is_taken_and_a_learners_has_no_momentum() -> None:
    learners = {0: [candidate(LEARNER, 4)], 1: [candidate(LEARNER, 5)]}
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 4), 1: candidate(JOURNAL, 3)}, cut(2), learners)
    assert rebuilt.sources == [JOURNAL, LEARNER, INITIAL]
    assert (rebuilt.momentum_lost, rebuilt.lost, rebuilt.found.versions) == ({1}, {}, [4, 5, 0])


def test_what_nobody_has_any_more_is_named_and_no_step_is_opened_twice() -> None:
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 2)}, {}, {1: [candidate(LEARNER, 3)]})
    fact = rebuilt.fact("it burnt")
    assert (fact.commits_lost, fact.versions_left, fact.momentum_lost) == ((0, 1), (2, 3), (1,))
    assert (rebuilt.found.versions, rebuilt.found.clock) == ([2, 3, 0], 5)


def test_the_epochs_after_the_next_open_no_step_twice_either() -> None:
    """The next one may die before it commits. A seed of `rebuilding` with kill points found that."""
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 2)}, {}, {1: [candidate(LEARNER, 3)]})
    found = groups.decode_replay(groups.encode_replay(rebuilt.replay)).found
    assert (found.clock, found.whole) == (5, False) and log().found.whole


def test_a_value_that_is_not_what_was_announced_is_not_taken() -> None:
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 4, "another")}, {}, {})
    assert rebuilt.sources == [INITIAL, INITIAL, INITIAL]
    assert rebuilt.found.digests == ["", "", ""], "the digest of what is lost is not that of the initial values"


def test_a_version_whose_record_is_lost_is_taken_from_a_learner_and_never_committed_again() -> None:
    """Learners have it, so it was announced: another value under its number would pass for it."""
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 4), 1: candidate(JOURNAL, 5)}, {}, {1: [candidate(LEARNER, 9)]})
    assert (rebuilt.sources, rebuilt.found.versions) == ([JOURNAL, LEARNER, INITIAL], [4, 9, 0])
    assert (rebuilt.found.clock, rebuilt.momentum_lost, rebuilt.lost) == (9, {1}, {})


def test_with_no_learner_left_the_checkpoint_gives_what_is_lost_and_takes_no_record_back() -> None:
    """Seed 7950173 of mixed took commits back, of which no book in the log knew."""
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 4)}, cut(3), {})
    assert rebuilt.sources == [JOURNAL, CHECKPOINT, INITIAL]
    assert (rebuilt.found.versions, rebuilt.found.tokens_committed, rebuilt.found.clock) == ([4, 3, 0], 40, 5)
    assert rebuilt.lost == {1: (5, 3)}


def test_with_the_journal_whole_the_checkpoint_is_not_asked() -> None:
    rebuilt = rebuild(log(), {0: candidate(JOURNAL, 4), 1: candidate(JOURNAL, 5)}, cut(3), {})
    assert rebuilt.sources == [JOURNAL, JOURNAL, INITIAL] and not rebuilt.lost
    assert rebuilt.found.versions == [4, 5, 0]
