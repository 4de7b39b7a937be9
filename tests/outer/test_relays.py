"""Which learners of a region fetch a version from the syncer."""

from __future__ import annotations

import pytest

from outer.relays import Relays


@pytest.fixture
def relays() -> Relays:
    made = Relays("us")
    for learner, region in (("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "us"), ("e", "us"), ("f", ""), ("g", "asia")):
        made.expect(learner, region)
    return made


def sources(relays: Relays, learners: str, version: int, failed: str = "") -> list[str]:
    return [relays.source(learner, 0, version, version, failed) for learner in learners]


def test_a_version_crosses_each_link_once(relays: Relays) -> None:
    assert sources(relays, "abcg", 5) == ["", "a", "a", ""]
    assert sources(relays, "cba", 6) == ["", "c", "c"]


def test_learners_beside_the_syncer_of_no_region_and_strangers_ask_it_themselves(relays: Relays) -> None:
    assert sources(relays, "dedeffx", 5) == [""] * 7


def test_fragments_have_relays_of_their_own(relays: Relays) -> None:
    assert relays.source("a", 0, 5, 5, "") == relays.source("b", 1, 5, 5, "") == ""
    assert relays.source("a", 1, 5, 5, "") == "b"


def test_a_relay_that_gives_nothing_is_replaced_by_who_asks_again(relays: Relays) -> None:
    sources(relays, "a", 5)
    assert sources(relays, "b", 5) == ["a"]
    assert sources(relays, "b", 5, failed="a") == [""]
    assert sources(relays, "c", 5) == ["b"]


def test_who_gave_another_nothing_is_no_relay_by_a_notice_until_it_asks_itself(relays: Relays) -> None:
    def told(learner: str, version: int) -> str:
        return relays.source(learner, 0, version, version, "", asks=False)

    assert [told("a", 5), told("b", 5)] == ["", "a"]
    assert sources(relays, "b", 5, failed="a") == [""]
    assert [told("a", 6), told("b", 6), told("c", 6)] == ["", "", "b"], "it may be frozen"
    assert sources(relays, "a", 6) == ["b"]
    assert [told("a", 7), told("b", 7)] == ["", "a"]


def test_a_relay_that_started_anew_or_needs_a_version_again_asks_the_syncer(relays: Relays) -> None:
    assert sources(relays, "aa", 5) == ["", ""]
    relays.expect("a", "eu")
    assert sources(relays, "b", 5) == [""], "it holds nothing"


def test_a_relay_of_a_newer_version_serves_who_wants_an_older_one(relays: Relays) -> None:
    assert relays.source("a", 0, 5, 7, "") == ""
    assert relays.source("b", 0, 6, 8, "") == "a"
    assert relays.source("b", 0, 8, 8, "") == ""
