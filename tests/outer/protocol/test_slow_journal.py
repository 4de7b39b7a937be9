"""Merges or a journal slower than the pacing make rounds longer, and waste few steps."""

from __future__ import annotations

import pytest

from outer.protocol.events_effects import Append, Durable, Merge, Send
from outer.protocol.facts import Committed
from outer.protocol.messages import ReadRequest
from tests.transcripts.syncer_world import Bench, bench, merged

EVERY = 8  # syncer steps from one fragment's turn to the next one's


def run(journal_s: float, merge_s: float, commits: int) -> Bench:
    """One learner steps each second, answers and adopts at once. Merges, one at a time, and commits take so long."""
    made = bench("a", sync={"P": 12, "H": 12 * EVERY, "tau": 2}, quorum=1)
    made.journals_itself = made.merges_itself = False
    seen, committed, until = 0, 0, made.now + 10.0 * (journal_s + merge_s) * commits
    writing: list[tuple[float, Append]] = []
    merging: list[tuple[float, int]] = []  # when it ends, and its syncer step
    while committed < commits:
        assert made.now < until, "no commit comes"
        made.now += 1.0
        made.step("a")
        while merging and merging[0][0] <= made.now:
            made.do(merged(merging.pop(0)[1]))
        while writing and writing[0][0] <= made.now:
            effect = writing.pop(0)[1]
            made.do(Durable(effect.sequence))
            made.adopt("a")
            committed += isinstance(effect.record, Committed)
        while seen < len(made.log):
            effect, seen = made.log[seen], seen + 1
            if isinstance(effect, Append):
                writing.append((made.now + journal_s * isinstance(effect.record, Committed), effect))
            elif isinstance(effect, Merge):
                merging.append((max([made.now, *(at for at, _ in merging)]) + merge_s, effect.syncer_step))
            elif isinstance(effect, Send) and isinstance(effect.message, ReadRequest):
                made.do(made.peers["a"].answer(effect.message))
    return made


@pytest.mark.parametrize(("journal_s", "merge_s"), [(1.5 * EVERY, 0.0), (0.0, 1.5 * EVERY)])
def test_behind_a_slow_journal_or_slow_merges_a_contribution_has_most_of_a_rounds_steps(
    journal_s: float, merge_s: float
) -> None:
    """Found on a GPU: steps that waited for the journal made exchanges seem long, so that ever more were open, until
    each contribution left its learner right after it adopted, and a round's other steps were overwritten.
    """
    newest = run(journal_s, merge_s, 6 * 12).facts(Committed)[-12:]
    steps = [commit.participants[0].steps for commit in newest]
    assert min(steps) >= 0.85 * 12 * (journal_s + merge_s), steps
