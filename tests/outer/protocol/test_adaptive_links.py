"""Fewer bits over a link that has become slow, and back; reads that are asked for ahead of their step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outer.config import SyncConfig
from outer.protocol.events_effects import Tick
from outer.protocol.facts import Committed, LeaseExpired, LinkAdapted, StepReopened
from outer.protocol.link_estimate import OF_LEAST, QUEUE, WINDOW, LinkWindow
from outer.protocol.link_ladder import AFTER, BACK_AFTER, LadderPlace, Uplinks
from outer.protocol.links import EARLY, UnderWay
from outer.protocol.messages import DRAINING, Notice, ReadRequest
from outer.protocol.syncer import Budget
from tests.transcripts.syncer_world import PATIENT, Bench, Peer, reading

MIB = 2**20
UPLINKS = Uplinks(("", "bf16", "int8"), ((4 * MIB,) * 2, (2 * MIB,) * 2, (MIB,) * 2))
ONE = Uplinks(("",), ((4 * MIB,) * 2,))
ROUND_S = 12.0


def judged(place: LadderPlace, byte_s: float, times: int) -> list[str]:
    """What `times` answers over a link of this rate lead to; a second fits."""
    codecs = UPLINKS.codecs
    return [place.judge(codecs, lambda codec: byte_s * UPLINKS.mean_bytes(codec), 1.0) for _ in range(times)]


def test_a_link_goes_down_after_several_answers_in_a_row_and_to_where_they_fit() -> None:
    place = LadderPlace()
    assert judged(place, 0.5 / MIB, AFTER - 1) == [""] * (AFTER - 1)
    assert judged(place, 0.2 / MIB, 1) == [""], "one that fits begins the count anew"
    *_, told = judged(place, 0.5 / MIB, AFTER)
    assert told == "3 answers in a row took about 2 s, 1 s fit"
    assert UPLINKS.codecs[place.rung] == "bf16"
    judged(place, 3.0 / MIB, 2 * AFTER)
    assert UPLINKS.codecs[place.rung] == "int8", "the fewest bits that there are"


def test_it_comes_back_one_rung_at_a_time_and_not_on_the_edge() -> None:
    place = LadderPlace(rung=2)
    assert judged(place, 0.3 / MIB, 5 * BACK_AFTER) == [""] * 5 * BACK_AFTER, "bf16 would take 0.6 of 1 s: it stays"
    assert judged(place, 0.2 / MIB, BACK_AFTER)[-1]
    assert place.rung == 1
    assert not any(judged(place, 0.2 / MIB, 5 * BACK_AFTER)), "fp32 would take 0.8 s"


def test_a_window_shrinks_by_queueing_alone_and_grows_as_far_as_it_is_used() -> None:
    far = LinkWindow()
    for _ in range(2000):
        far.note(ROUND_S / 2, 20, ROUND_S)
    assert far.size == pytest.approx(20 + WINDOW, abs=0.1), "a long way is no queue"
    idle = LinkWindow()
    for _ in range(200):
        idle.note(1.0, 0, ROUND_S)
    assert idle.size == WINDOW
    full, each_s = LinkWindow(), 0.5
    full.note(each_s, 0, ROUND_S)
    for round_s, waited_s in ((ROUND_S, QUEUE * ROUND_S), (ROUND_S / 100, OF_LEAST * each_s)):
        for _ in range(400):
            full.note(each_s * full.size, 20, round_s)
        assert (full.size - 1) * each_s == pytest.approx(waited_s, rel=0.3), "part of a round, or of a transfer"


def made_of_two(uplinks: Uplinks = ONE, k: int = 1, **sync: Any) -> Bench:
    """a and b, K = `k`; steps of a second, tau = 2, rounds of 12; two fragments of 4 MiB, or of 2 or 1."""
    given = {"P": 2, "H": 12, "tau": 2, "grace": 0.5, "read_timeout_s": 1.0} | sync
    made = Bench({"a": 2, "b": 2}, quorum=k, budget=Budget(None, 10_000), sync=given, elements=MIB, uplinks=uplinks)
    made.join("a", "b")
    return made


def run(made: Bench, seconds: int, a_mib_s: float, late_s: float = 0.0, **answer: Any) -> None:
    """Both step every second; b answers at once, a after `late_s`, and a's link carries `a_mib_s`."""
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
                size = UPLINKS.bytes(request.codec, request.fragment)
                took_s = size / MIB / a_mib_s if name == "a" else 0.01
                said = made.peers[name].answer(request, codec=request.codec, took_s=took_s, **answer)
                due.append((made.now + took_s + (late_s if name == "a" else 0.0), said, name))  # type: ignore[arg-type]
        for each in [each for each in due if each[0] <= made.now + 0.25]:
            due.remove(each)
            made.do(each[1])  # type: ignore[arg-type]
    made.due, made.seen = due, seen  # type: ignore[attr-defined]


def share_of(made: Bench, name: str, since: int = 0) -> float:
    commits = made.facts(Committed)[since:]
    return sum(any(one.learner == name for one in commit.participants) for commit in commits) / len(commits)


@pytest.mark.parametrize("k", [1, 2])
def test_a_slow_link_is_asked_ahead_and_so_is_in_every_commit_and_delays_none(k: int) -> None:
    made = made_of_two(k=k, read_timeout_s=4.0)
    run(made, 120, 40.0)
    before = len(made.facts(Committed))
    assert share_of(made, "a") == 1.0 and not any(each.attempt == EARLY for each in made.sent(ReadRequest, "a"))
    run(made, 60, 1.5)
    began = len(made.facts(Committed))
    run(made, 120, 1.5)
    during = made.facts(Committed)[began:]
    assert share_of(made, "a", began) == 1.0 and len(during) >= before - 1
    assert max(commit.sync_s for commit in during) <= 2.0, "tau steps"
    assert any(each.attempt == EARLY for each in made.sent(ReadRequest, "a"))
    assert made.facts(LinkAdapted) == [], "without sync.adaptive it keeps its format"


def test_who_answers_late_over_a_fast_link_is_asked_ahead_the_next_time() -> None:
    made = made_of_two(read_timeout_s=4.0)
    run(made, 240, 40.0, late_s=2.5)
    assert share_of(made, "a", 4) >= 0.4
    assert any(each.attempt == EARLY for each in made.sent(ReadRequest, "a"))


def test_with_adaptive_a_slow_link_sends_fewer_bits_keeps_contributing_and_comes_back() -> None:
    made = made_of_two(UPLINKS, adaptive=True)
    run(made, 120, 40.0)
    assert made.facts(LinkAdapted) == [] and share_of(made, "a") == 1.0
    before = len(made.facts(Committed))
    run(made, 240, 2.0)
    during = len(made.facts(Committed))
    (down,) = made.facts(LinkAdapted)
    assert down.codec_before == "fp32" and down.codec in ("bf16", "int8")
    assert down.bytes_s == pytest.approx(2 * MIB, rel=0.2) and "fit" in down.reason
    assert during - before >= 0.95 * 2 * before, "nobody waited for it"
    merged = [one for commit in made.facts(Committed)[-8:] for one in commit.participants if one.learner == "a"]
    assert len(merged) == 8 and {one.codec for one in merged} == {down.codec}
    run(made, 240, 40.0)
    assert made.facts(LinkAdapted)[-1].codec == "fp32"
    assert share_of(made, "a", during + 8) >= 0.95


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
    made = made_of_two(UPLINKS, adaptive=True)
    run(made, 60, 40.0)
    run(made, 120, 1e-9)
    told = made.facts(LinkAdapted)
    assert [fact.codec for fact in told] == ["bf16", "int8"] and {fact.learner for fact in told} == {"a"}
    assert told[0].reason == "3 answers in a row did not come"
    made.due = []  # they are lost
    run(made, 240, 40.0)
    assert made.facts(LinkAdapted)[-1].codec == "fp32"


def test_answers_that_a_cut_delayed_are_no_slow_link() -> None:
    made = made_of_two(UPLINKS, adaptive=True)
    run(made, 120, 40.0)
    asked = made.sent(ReadRequest, "a")[-4:]
    made.peers["a"].lease_s = 5.0
    made.step("a")
    for _ in range(30):
        made.now += 1.0
        made.step("b")
        made.do(Tick())
    assert [fact.learner for fact in made.facts(LeaseExpired)] == ["a"]
    delayed = [made.peers["a"].answer(each, codec=each.codec, took_s=30.0) for each in asked]
    for each in delayed[:2]:
        made.do(each)
    made.step("a")
    for each in delayed[2:]:
        made.do(each)
    made.peers["a"].lease_s = 1e9
    run(made, 60, 40.0)
    assert [fact for fact in made.facts(LinkAdapted) if fact.learner == "a"] == []


def test_an_answer_that_came_ahead_is_kept_while_the_others_lack_a_base() -> None:
    made = reading("a", "b", quorum=2)
    made.join("c", **PATIENT)
    made.answer("a", "b")
    made.adopt("c")
    made.step("c")
    member = made.syncer._members.get("c", 1)
    assert member is not None
    member.under_way[0] = UnderWay(2, EARLY, 0, math.inf)
    ahead = made.peers["c"].answer(ReadRequest(1, 1, 2, 0, EARLY, 0.0, 1.0))
    made.do(ahead)
    made.step("a")
    assert [fact.syncer_step for fact in made.facts(StepReopened)] == [2] and made.syncer.held == [ahead]
    made.adopt("b")
    made.step("b", "c")
    made.now += 1.0  # the grace of a step that lacked bases
    made.do(Tick())
    assert made.asked(2) == ["b"]
    made.answer("b")
    assert [each.step for each in made.facts(Committed)[-1].participants] == [made.peers["b"].step, ahead.step]


def test_who_leaves_while_its_answer_is_under_way_is_not_asked_for_another() -> None:
    made = reading("a", "b", quorum=2)
    made.join("c", **PATIENT)
    made.answer("a", "b")
    made.adopt("a", "b", "c")
    member = made.syncer._members.get("c", 1)
    assert member is not None
    member.under_way[0] = UnderWay(2, EARLY, 0, math.inf)
    made.peers["c"].phase = DRAINING
    made.step("c", "a")
    assert made.asked(2) == ["a"]
    made.do(made.peers["c"].answer(ReadRequest(1, 1, 2, 0, EARLY, 0.0, 1.0)))
    made.answer("a")
    assert [each.learner for each in made.facts(Committed)[-1].participants] == ["a", "c"]
