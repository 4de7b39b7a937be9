"""What the syncer counts for status pages: each event once, of each learner, and no more than a bounded number."""

from __future__ import annotations

from typing import Any

from outer.protocol.counts import OTHER, REASONS_MAX
from outer.protocol.events_effects import Fence, ReadMissed, Tick
from outer.protocol.facts import Committed, LeaseExpired, ReadFailed, StepReopened
from tests.transcripts.syncer_world import ALL, Bench, bench, reading


def counts(made: Bench, learner: str) -> dict[str, Any]:
    found: dict[str, Any] = made.syncer.counts.view()["learners"][learner]
    return found


def test_a_commit_counts_once_it_is_durable_with_its_times_bytes_and_tokens() -> None:
    made = reading("a", "b", "c", sync=ALL)
    assert made.syncer.counts.commits == 0
    made.answer("a", "b", "c")
    [commit] = made.facts(Committed)
    told = made.syncer.counts.view()
    assert (told["commits"], told["live"], told["norms"]) == (1, commit.live, {str(commit.fragment): commit.norm})
    assert (told["quorum_s"], told["grace_s"], told["sync_s"]) == (commit.quorum_s, commit.grace_s, commit.sync_s)
    learners = told["learners"]
    assert sum(each["tokens_committed"] for each in learners.values()) == commit.tokens_committed
    assert [learners[name]["tokens_processed"] for name in "abc"] == [made.peers[name].processed for name in "abc"]
    for each in commit.participants:
        assert learners[each.learner]["contributions"] == 1
        assert learners[each.learner]["tokens_committed"] == each.tokens
        assert learners[each.learner]["contribution_bytes"] > 0
    rows = {row["name"]: row["merged"] for row in made.syncer.view(made.now)}
    assert rows == dict.fromkeys(rows, True)


def test_what_goes_wrong_is_counted_by_learner_and_reason() -> None:
    made = reading("a", "b", "c", sync=ALL)
    made.do(ReadMissed("a", 1, 1, "ActorDiedError"))
    assert counts(made, "a")["reads_failed"] == {"ActorDiedError": 1}
    for name in "bc":
        made.do(ReadMissed(name, 1, 1, "timeout"))
    reopened, failed = made.facts(StepReopened), made.facts(ReadFailed)
    assert reopened and made.syncer.counts.steps_reopened == len(reopened)
    assert sum(sum(counts(made, name)["reads_failed"].values()) for name in "abc") == len(failed)
    for _ in range(2):
        made.do(Fence("b", 1, "killed"))
    assert counts(made, "b")["fences"] == {"killed": 1}
    made.do(made.peers["b"].report())
    assert counts(made, "b")["refusals"] == {"stale_incarnation": 1}
    made.now += 1000.0
    made.do(Tick())
    expired = [fact.learner for fact in made.facts(LeaseExpired)]
    assert {name: counts(made, name)["lease_expiries"] for name in "ac"} == {name: expired.count(name) for name in "ac"}


def test_tokens_of_an_incarnation_that_is_fenced_are_discarded_unless_a_commit_has_them() -> None:
    made = bench("a", "b")
    made.step("a", "a", "b")
    processed = counts(made, "a")["tokens_processed"]
    assert processed > 0
    made.do(Fence("a", 1, "killed"))
    told = counts(made, "a")
    assert told["tokens_discarded"] == {"killed": processed - told["tokens_committed"]}
    made.join("a")
    made.step("a")
    assert counts(made, "a")["tokens_processed"] > processed, "of all incarnations"


def test_reasons_that_peers_word_are_bounded_and_strangers_are_not_counted() -> None:
    made = reading("a", "b", "c", sync=ALL)
    for number in range(2 * REASONS_MAX):
        made.syncer.counts.note(ReadFailed("a", 1, 1, 0, f"reason {number}"))
        made.syncer.counts.note(ReadFailed(f"stranger {number}", 1, 1, 0, "timeout"))
    told = counts(made, "a")["reads_failed"]
    assert len(told) == REASONS_MAX + 1 and told[OTHER] == REASONS_MAX
    assert set(made.syncer.counts.learners) == set("abc")


def test_a_new_epoch_counts_from_0_and_processed_what_no_commit_of_the_earlier_ones_has() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.commit("a", "b")
    made.step("a")
    made.crash()
    assert made.syncer.counts.commits == 0 and counts(made, "a")["tokens_committed"] == 0
    assert counts(made, "a")["tokens_processed"] == 10, "the step that is in no commit"
    before = made.syncer.tokens_committed
    for _ in range(2):
        made.commit("a", "b")
    told = {name: counts(made, name) for name in "ab"}
    assert made.syncer.counts.commits == 2
    assert sum(each["tokens_committed"] for each in told.values()) == made.syncer.tokens_committed - before
    assert all(each["tokens_processed"] >= each["tokens_committed"] > 0 for each in told.values())


def test_what_every_incarnation_processed_is_counted() -> None:
    made = bench("a", "b")
    for _ in range(3):
        made.step("a", "a", "b")
        made.join("a")
    counted = made.syncer.counts.learners
    assert (counted["a"].tokens_processed, counted["b"].tokens_processed) == (3 * 20, 30)
