"""The learner machine: which version takes effect when, and what then counts since, in every mode of adoption."""

from __future__ import annotations

import pytest

from learners.protocol.events_effects import Apply, Fetch, Fetched, FetchFailed, Hold, Resume
from learners.protocol.facts import Adopted, AdoptionRefused
from outer.protocol.messages import FragmentCounters, Grant, Welcome
from tests.golden.loop import TOKENS, Loop, joined, notice, only


def test_with_error_feedback_a_version_waits_for_its_notice_and_names_its_read() -> None:
    loop = joined(codec="int8", error_feedback=0.9)
    loop.steps(2)
    loop.read(2, 1)
    loop.do(Fetched(1, 2, "v2"))
    assert only(Apply, loop.step()) == [], "its notice is not here"
    loop.deliver(2, 1, merged_step=2)
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "overwrite", read_at=2)]
    assert loop.facts(Adopted)[-1] == Adopted(1, 2, 4, "overwrite", read_at=2)
    loop.step()
    assert loop.counters(1) == FragmentCounters(2, 4, 1, TOKENS), "it counts as without"
    loop.deliver(6, 1, merged_step=2)
    assert only(Apply, loop.step()) == [Apply(1, 6, "v6", "overwrite", read_at=None)], "that read went into version 2"


def test_of_several_versions_the_newest_is_adopted_and_older_ones_are_refused() -> None:
    loop = joined()
    loop.steps(1)
    loop.do(notice(6, 1), notice(2, 1))
    assert [fetch.version for fetch in only(Fetch, loop.log)][2:] == [6], "older than what is being fetched"
    loop.do(Fetched(1, 2, "v2"))
    assert only(Fetch, loop.do(notice(6, 1))) == [], "the newer one is still on its way"
    loop.do(Fetched(1, 6, "v6"), Fetched(1, 2, "v2"))
    assert only(Apply, loop.step()) == [Apply(1, 6, "v6", "overwrite")]
    loop.do(notice(2, 1))
    assert loop.facts(AdoptionRefused) == [AdoptionRefused(1, 2, "older")], "announced"
    loop.do(Fetched(1, 2, "v2"))
    assert only(Apply, loop.step()) == []
    assert loop.facts(AdoptionRefused) == [AdoptionRefused(1, 2, "older")] * 2, "delivered"
    assert loop.counters(1).base_version == 6


def test_a_fragment_whose_time_has_not_come_holds_no_other_back() -> None:
    loop = joined(adopt="rebase")
    loop.do(Fetched(0, 4, "v4"))  # its notice is still on its way
    loop.deliver(2, 1)
    assert only(Apply, loop.step()) == [Apply(1, 2, "v2", "rebase", read_at=None)]


def test_a_notice_of_what_is_held_or_on_its_way_fetches_nothing_and_after_a_failure_it_does() -> None:
    loop = joined()
    loop.steps(1)
    fetched = [only(Fetch, loop.do(notice(*each))) for each in ((0, 1), (1, 1), (2, 1), (2, 1))]
    assert fetched == [[], [Fetch(1, 1, "digest")], [Fetch(1, 2, "digest")], []]
    assert loop.facts(AdoptionRefused) == []
    assert only(Fetch, loop.do(FetchFailed(1, 2, "bad_digest"))) == []
    assert loop.facts(AdoptionRefused) == [AdoptionRefused(1, 2, "bad_digest")]
    assert only(Fetch, loop.do(notice(2, 1))) == [Fetch(1, 2, "digest")]
    loop.do(Fetched(1, 2, "v2"))
    assert only(Fetch, loop.do(notice(2, 1))) == []


# ------------------------------------------------------------------ strict overlap


@pytest.mark.parametrize(("tau", "clock", "newest"), [(2, 6, 2), (1, 5, 6)])
def test_a_strict_joiner_starts_at_the_clock_and_waits_for_no_version_that_was_read_before_or_that_it_has(
    tau: int, clock: int, newest: int
) -> None:
    """Fragment 1 is read at 2 and 6."""
    loop = Loop(overlap="strict", tau=tau)
    loop.compile()
    loop.do(Welcome(1, clock, 0.0, (4, 2)), notice(newest, 1), Fetched(0, 4, "v4"), Fetched(1, newest, "v"))
    loop.do(Grant(1, 3, 0, 0, 200), Resume())
    assert loop.facts(Adopted)[-1] == Adopted(1, newest, clock, "bootstrap")
    assert only(Hold, [*loop.step(), *loop.step()]) == [] and loop.machine.step == clock + 2


@pytest.mark.parametrize(("adopt", "base_step"), [("overwrite", 4), ("rebase", 0)])
def test_with_a_window_an_older_version_waits_until_it_is_known_whether_an_answer_merged(
    adopt: str, base_step: int
) -> None:
    loop = joined(adopt=adopt, base_window=2)
    loop.steps(2)
    loop.do(notice(1, 1))
    assert loop.read(2, 1)[0].counters == FragmentCounters(0, 0, 2, 2 * TOKENS)
    loop.do(Fetched(1, 1, "v1"))
    assert only(Apply, loop.step()) == [], "steps 1 and 2 may still merge into version 2"
    loop.do(notice(2, 1))
    assert [effect.version for effect in only(Apply, loop.step())] == [1], "they have not"
    loop.step()
    assert loop.counters(1) == FragmentCounters(1, base_step, 5 - base_step, (5 - base_step) * TOKENS)
