"""The verdict on an open step, and the averages behind grace (paper section 3)."""

from __future__ import annotations

import itertools

from outer.protocol.quorum import Average, Decision, decide


def test_every_verdict_agrees_with_the_rules_written_out() -> None:
    """All small cases: K, live, reported, before and after the end of grace."""
    for quorum, live, reported in itertools.product(range(1, 4), range(4), range(4)):
        for quorum_at, grace_s, now in itertools.product((None, 5.0), (None, 0.0, 2.0), (5.0, 6.9, 7.0, 9.0)):
            verdict = decide(now, quorum=quorum, live=live, reported=reported, quorum_at=quorum_at, grace_s=grace_s)
            assert verdict.reason
            if min(live, reported) < quorum:
                expected = Decision.WAIT
            elif reported >= live or (quorum_at is None and grace_s == 0.0):
                expected = Decision.MERGE
            elif quorum_at is None:
                expected = Decision.OPEN_GRACE
            else:
                over = grace_s is not None and now >= quorum_at + grace_s
                expected = Decision.MERGE if over else Decision.WAIT
            assert verdict.decision is expected


def test_the_first_sample_counts_whole_and_later_ones_by_their_weight() -> None:
    average = Average(0.25)
    average.add(8.0)
    assert average.value == 8.0
    average.add(0.0)
    assert average.value == 6.0
