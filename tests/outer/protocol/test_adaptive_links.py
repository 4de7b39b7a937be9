"""Fewer bits, then a longer H, over a link that has become slow, and back."""

from __future__ import annotations

from typing import Any

import pytest

from outer.config import SyncConfig
from outer.protocol.facts import Committed, LinkAdapted, ReadFailed
from outer.protocol.link_ladder import AFTER, BACK_AFTER, Clock, LadderPlace, Rung, Uplinks
from outer.protocol.links import EARLY
from outer.protocol.messages import Notice, ReadRequest
from outer.protocol.syncer import Budget
from tests.transcripts.syncer_world import Bench, Peer

MIB = 2**20
UPLINKS = Uplinks(("", "bf16", "int8"), ((4 * MIB,) * 2, (2 * MIB,) * 2, (MIB,) * 2))
CLOCK = Clock(room_s=1.25, round_s=12.0, fragments=2)


def judged(place: LadderPlace, byte_s: float, times: int) -> list[str]:
    """What `times` answers over a link of this rate lead to."""
    ladder = UPLINKS.ladder(0)
    return [place.judge(ladder, lambda rung: byte_s * UPLINKS.mean_bytes(rung), CLOCK) for _ in range(times)]


def test_the_ladder_is_fewer_bits_and_then_a_longer_h_as_long_as_the_base_window_allows() -> None:
    assert UPLINKS.ladder(0) == (
        Rung(), Rung("bf16"), Rung("int8"), Rung("int8", 2), Rung("int8", 4), Rung("int8", 8),
    )  # fmt: skip
    assert UPLINKS.ladder(1)[-1] == Rung("int8", 2)
    assert UPLINKS.ladder(4)[-1] == Rung("int8", 4)


def test_a_link_goes_down_after_several_answers_in_a_row_and_to_where_they_fit() -> None:
    place = LadderPlace()
    assert judged(place, 0.5 / MIB, AFTER - 1) == [""] * (AFTER - 1)
    assert judged(place, 0.2 / MIB, 1) == [""], "one that fits begins the count anew"
    *_, told = judged(place, 0.5 / MIB, AFTER)
    assert told == "3 answers in a row took about 2 s, 1 s fit"
    assert UPLINKS.ladder(0)[place.rung] == Rung("bf16")
    judged(place, 3.0 / MIB, AFTER)
    assert UPLINKS.ladder(0)[place.rung] == Rung("int8", 2), "asked for ahead, 3 s are no trouble"


def test_it_comes_back_one_rung_at_a_time_and_not_on_the_edge() -> None:
    place = LadderPlace(rung=2)
    assert judged(place, 0.3 / MIB, 5 * BACK_AFTER) == [""] * 5 * BACK_AFTER, "bf16 would take 0.6 of 1 s: it stays"
    assert judged(place, 0.2 / MIB, BACK_AFTER)[-1]
    assert place.rung == 1
    assert not any(judged(place, 0.2 / MIB, 5 * BACK_AFTER)), "fp32 would take 0.8 s"


def made_of_two(k: int = 1, **sync: Any) -> Bench:
    """a and b, K = `k`; steps of a second, tau = 2, rounds of 12; two fragments of 4 MiB, or of 2 or 1."""
    given = {"P": 2, "H": 12, "tau": 2, "grace": 0.5, "read_timeout_s": 1.0} | sync
    made = Bench({"a": 2, "b": 2}, quorum=k, budget=Budget(None, 10_000), sync=given, elements=MIB, uplinks=UPLINKS)
    made.join("a", "b")
    return made


def run(made: Bench, seconds: int, a_mib_s: float, **answer: Any) -> None:
    """Both step every second; b answers at once, and a's link carries `a_mib_s`, one answer after the other."""
    due: list[tuple[float, ReadRequest, Peer]] = list(getattr(made, "due", []))
    seen = set(getattr(made, "seen", ()))
    for tick in range(2 * seconds):
        made.now += 0.5
        for name in ("a", "b"):
            peer = made.peers[name]
            for fragment in range(2):
                told = [each.version for each in made.sent(Notice, name) if each.fragment == fragment]
                if told and max(told) > (peer.bases[fragment][0] or 0):
                    peer.bases[fragment] = (max(told), peer.step, peer.processed)
        if tick % 2:
            made.step("a", "b")
        for name in ("b", "a"):
            for request in made.sent(ReadRequest, name):
                key = (name, request.syncer_step, request.attempt, request.fragment)
                if key in seen:
                    continue
                seen.add(key)
                size = UPLINKS.bytes(Rung(request.codec), request.fragment)
                took_s = size / MIB / a_mib_s if name == "a" else 0.01
                said = made.peers[name].answer(request, codec=request.codec, took_s=took_s, **answer)
                due.append((made.now + took_s, said, name))  # type: ignore[arg-type]
        for each in [each for each in due if each[0] <= made.now + 0.25]:
            due.remove(each)
            made.do(each[1])  # type: ignore[arg-type]
    made.due, made.seen = due, seen  # type: ignore[attr-defined]


def share_of(made: Bench, name: str, since: int = 0) -> float:
    commits = made.facts(Committed)[since:]
    return sum(any(one.learner == name for one in commit.participants) for commit in commits) / len(commits)


def test_a_slow_link_sends_fewer_bits_keeps_contributing_and_comes_back() -> None:
    made = made_of_two(adaptive=True)
    run(made, 120, 40.0)
    assert made.facts(LinkAdapted) == [] and share_of(made, "a") == 1.0
    before = len(made.facts(Committed))
    run(made, 240, 2.0)
    during = len(made.facts(Committed))
    (down,) = made.facts(LinkAdapted)
    assert (down.codec_before, down.every_before, down.every) == ("fp32", 1, 1) and down.codec in ("bf16", "int8")
    assert down.bytes_s == pytest.approx(2 * MIB, rel=0.2) and "fit" in down.reason
    assert during - before >= 0.95 * 2 * before, "nobody waited for it"
    merged = [one for commit in made.facts(Committed)[-8:] for one in commit.participants if one.learner == "a"]
    assert len(merged) == 8 and {one.codec for one in merged} == {down.codec}
    run(made, 400, 40.0)
    assert made.facts(LinkAdapted)[-1].codec == "fp32"
    assert share_of(made, "a", during + 4) >= 0.95


def test_over_a_link_too_slow_for_any_format_it_is_asked_ahead_every_second_round() -> None:
    made = made_of_two(adaptive=True)
    run(made, 400, 0.4)
    newest = made.facts(LinkAdapted)[-1]
    assert (newest.codec, newest.every) == ("int8", 2)
    ahead = [each for each in made.sent(ReadRequest, "a") if each.attempt == EARLY]
    assert ahead and {each.codec for each in ahead} == {"int8"}
    began = len(made.facts(Committed))
    run(made, 240, 0.4)
    assert share_of(made, "a", began) == pytest.approx(0.5, abs=0.1), "every second round of each fragment"
    assert len(made.facts(Committed)) - began >= 38, "and no commit waits for it"


def test_with_a_base_window_it_gets_every_second_version_and_contributes_both_rounds() -> None:
    made = made_of_two(adaptive=True, base_window=1, codec="fp32_delta")
    run(made, 400, 0.4)
    began = len(made.facts(Committed))
    told = len(made.sent(Notice, "a"))
    run(made, 240, 0.4)
    parts = [one for commit in made.facts(Committed)[began:] for one in commit.participants if one.learner == "a"]
    assert {one.age for one in parts[1:]} == {1}
    assert min(one.steps for one in parts[1:]) > 12, "of more than one round"
    assert len(made.sent(Notice, "a")) - told <= 0.6 * (len(made.facts(Committed)) - began)


def test_one_that_the_quorum_needs_in_every_round_is_told_of_each_version_that_has_its_steps() -> None:
    made = made_of_two(k=2, adaptive=True, base_window=1, codec="fp32_delta", read_timeout_s=4.0)
    run(made, 400, 0.4)
    assert made.facts(LinkAdapted)[-1].every == 2
    began = len(made.facts(Committed))
    run(made, 240, 0.4)
    assert len(made.facts(Committed)) - began >= 20, (
        "a base that merged is of no use, so a spared notice would stop all"
    )


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"adaptive": True, "overlap": "strict"}, "adaptive needs overlap"),
        ({"adaptive": True, "grace": "infinite"}, "a grace that ends"),
    ],
)
def test_what_does_not_go_together_is_refused(sync: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SyncConfig.model_validate(sync)


def test_a_link_whose_answers_never_arrive_goes_down_too_and_comes_back_when_they_do() -> None:
    made = made_of_two(adaptive=True)
    run(made, 60, 40.0)
    run(made, 500, 1e-9)
    told = made.facts(LinkAdapted)
    assert told and all(fact.learner == "a" for fact in told)
    assert [fact.every for fact in told] == sorted(fact.every for fact in told) and told[-1].every > 1
    missed = [fact for fact in made.facts(ReadFailed) if fact.learner == "a"]
    assert len(missed) >= AFTER * len(told)
    assert told[0].reason == "3 answers in a row did not come"
    made.due = []  # they are lost
    run(made, 500, 40.0)
    assert made.facts(LinkAdapted)[-1].every == 1
