"""The learner's link to the syncer: reports take facts along until they are durable. Versions from other learners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learners import actor, checkpoint_writer, island
from learners import link as links
from learners.checkpoint_writer import CheckpointWriter
from learners.fault_effects import FaultEffects
from learners.link import Link, Version, owned
from learners.protocol.events_effects import Save
from learners.protocol.fact_buffer import ANSWER_MAX, RESEND_S, FactBuffer, read_clocks
from learners.protocol.resume_state import ResumeState
from learners.training.rank_call import RankCall
from outer.bulk import AtShard
from outer.journal import checkpoint_parts
from outer.journal.object_store import Folder, StoreAway
from outer.numeric import codec as codecs
from outer.ports import Gone, Unreachable
from outer.protocol.messages import STEPPING, STOPPED, Attach, Report
from outer.relays import Elsewhere
from tests.learners.peers import FakePeer, link
from tests.waiting import DEADLINE_S, in_a_loop, until, until_async


class FakeSyncer(FakePeer):
    """Takes what is in order and says that it is durable, unless `deaf`."""

    def __init__(self) -> None:
        super().__init__(report=lambda message, facts, oldest: self._take(facts))
        self.methods["record"] = lambda learner, incarnation, facts, oldest: self._take(facts)
        self.taken: list[int] = []
        self.sizes: list[int] = []
        self.deaf = False

    def _take(self, facts: list[Any]) -> Any:
        if self.deaf:
            return Unreachable("no answer")
        self.sizes.append(len(facts))
        for number, _, _ in facts:
            if number == len(self.taken):
                self.taken.append(number)
        return len(self.taken) - 1


async def reported(made: Link, *messages: Report) -> None:
    """Send reports, and wait for their answers."""
    for message in messages:
        made.report(message)
        await until_async(lambda: made._newest is None and not made._reports, "the answer")


def report(number: int, phase: str = STEPPING) -> Report:
    return Report("a", 1, 1, number, phase, 1.0, 0, 0.1, 0, 0, (), 0, False, None)


def buffer(facts: int, **settings: int) -> FactBuffer:
    made = FactBuffer(time.time, **settings)
    for number in range(facts):
        made.add(number)
    return made


@in_a_loop
async def test_facts_go_along_once_and_are_forgotten_when_they_are_durable() -> None:
    syncer, facts = FakeSyncer(), buffer(3)
    await reported(link(syncer, facts), report(1), report(2))
    assert syncer.sizes == [3, 0] and facts.recorded == 3


@in_a_loop
async def test_what_went_with_a_report_goes_again_at_once_if_that_failed_and_after_a_while_if_nobody_answers() -> None:
    clock, syncer = [0.0], FakeSyncer()
    facts = FactBuffer(time.time, monotonic=lambda: clock[0])
    reports = link(syncer, facts)
    facts.add(0)
    syncer.deaf = True
    await reported(reports, report(1))
    syncer.deaf = False
    await reported(reports, report(2))
    assert syncer.taken == [0]
    facts.add(1)
    facts.pending()
    await reported(reports, report(3))
    assert syncer.taken == [0], "the answer may only be late"
    clock[0] += RESEND_S
    await reported(reports, report(4))
    assert syncer.taken == [0, 1] and facts.recorded == 2


@in_a_loop
async def test_of_several_reports_that_wait_only_the_newest_is_sent() -> None:
    sent: list[int] = []
    reports = link(FakePeer(report=lambda message, facts, oldest: sent.append(message.sequence) or -1))
    for sequence in (1, 2, 3):
        reports.report(report(sequence))
    await until_async(lambda: sent, "the newest report")
    await reported(reports, report(4))
    assert sent == [3, 4]


@in_a_loop
async def test_the_last_report_waits_for_the_link_and_takes_along_what_was_held_back() -> None:
    sent: list[int] = []
    faults = FaultEffects(time.monotonic)
    reports = link(FakePeer(report=lambda message, facts, oldest: sent.append(message.sequence) or -1), faults=faults)
    faults.begin("link", 0.2)
    await reported(reports, report(1), report(2))
    assert sent == [], "the link is down"
    reports.report(report(3, STOPPED))
    await reports.flush(False)
    await until_async(lambda: sent == [1, 2, 3], "all of them")


@pytest.mark.parametrize(("durable", "held"), [(2, True), (1, False), (-1, False)])
@in_a_loop
async def test_a_donors_facts_are_durable_only_if_the_last_is(durable: int, held: bool) -> None:
    syncer = FakePeer(record=lambda learner, incarnation, facts, oldest: durable)
    assert await link(syncer).record("b", 1, buffer(3).pending(), 0) is held


@in_a_loop
async def test_a_backlog_is_uploaded_beside_the_loop_and_reports_take_none_of_it() -> None:
    syncer, facts = FakeSyncer(), buffer(5 * ANSWER_MAX)
    reports = link(syncer, facts)
    syncer.deaf = True
    await reported(reports, *map(report, range(20)))
    syncer.deaf = False
    await until_async(lambda: not facts.behind, "the backlog is durable")
    await reports.flush(False)
    assert facts.recorded == 5 * ANSWER_MAX and syncer.taken == list(range(5 * ANSWER_MAX))
    assert max(syncer.sizes) <= ANSWER_MAX


@pytest.mark.parametrize("patient", [True, False])
@in_a_loop
async def test_the_last_facts_have_a_deadline(monkeypatch: pytest.MonkeyPatch, patient: bool) -> None:
    clock, syncer, facts = [0.0], FakeSyncer(), buffer(3)

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(links, "now", lambda: clock[0])
    monkeypatch.setattr(links.asyncio, "sleep", sleep)
    syncer.deaf = True
    await link(syncer, facts).flush(patient)
    assert facts.recorded is None and clock[0] >= links.FLUSH_S
    syncer.deaf, began, record = False, clock[0], syncer.methods["record"]
    syncer.methods["record"] = lambda *given: record(*given) if clock[0] > began + 3 * links.FLUSH_S else -1
    await link(syncer, facts).flush(patient)
    assert (facts.recorded == 3) is patient, "the syncer answers, and its store is away"


# ------------------------------------------------------------------ the buffer of facts


def numbers(sent: list[tuple[int, float, Any]] | None) -> list[int]:
    assert sent is not None
    return [sequence for sequence, _, _ in sent]


def test_facts_are_numbered_from_zero_dated_when_they_are_said_and_sent_once() -> None:
    times = iter([5.0, 6.5])
    facts = FactBuffer(lambda: next(times))
    facts.add("first")
    facts.add("dated", 2.0)
    facts.add("second")
    assert facts.pending() == [(0, 5.0, "first"), (1, 2.0, "dated"), (2, 6.5, "second")]
    assert facts.pending() == []


def test_too_many_facts_for_one_answer_have_to_be_uploaded_first() -> None:
    facts = buffer(4)
    facts.carried_max = 3
    assert facts.behind
    assert facts.everything() is None
    assert numbers(facts.pending(4)) == [0, 1, 2, 3], "a refused answer has sent nothing"
    facts.acknowledge(0)
    assert not facts.behind
    assert numbers(facts.everything()) == [1, 2, 3]


def test_a_full_buffer_drops_the_oldest_facts() -> None:
    facts = buffer(3, limit=3)
    facts.pending(1)
    facts.add(3)
    facts.add(4)
    assert (facts.oldest, numbers(facts.everything())) == (2, [2, 3, 4])


def test_a_resumed_incarnation_continues_its_numbers() -> None:
    facts = buffer(2, first=7)
    assert (facts.oldest, numbers(facts.pending())) == (7, [7, 8])


def test_two_clocks_are_read_as_of_one_moment_though_the_process_is_frozen_between_them() -> None:
    now = [0.0]

    def wall() -> float:
        now[0] += 12.0 if now[0] < 12.0 else 0.001  # frozen before the first reading
        return 1000.0 + now[0]

    read, at = read_clocks(lambda: now[0], wall)
    assert at - read == pytest.approx(1000.0, abs=0.01)


# ------------------------------------------------------------------ the syncer comes and goes


@in_a_loop
async def test_a_syncer_that_cannot_be_reached_for_a_moment_is_asked_to_attach_again() -> None:
    answers = [Unreachable("timed out"), "welcome"]
    syncer = FakePeer(attach=lambda *_: answers.pop(0))
    assert await link(syncer).attach(Attach("a", 1, {}), 60.0) == "welcome"


@in_a_loop
async def test_what_a_frozen_syncer_was_asked_is_given_up_when_another_serves() -> None:
    made = link(FakePeer(attach=lambda *_: asyncio.get_running_loop().create_future()))
    waiting = asyncio.ensure_future(made.attach(Attach("a", 1, {}), 60.0))
    await asyncio.sleep(0)
    made.use(FakePeer(attach=lambda *_: "welcome"))
    assert await waiting is None and await made.attach(Attach("a", 1, {}), 60.0) == "welcome"


@in_a_loop
async def test_a_syncer_that_is_gone_is_not_asked_to_attach_again() -> None:
    asked: list[Any] = []
    syncer = FakePeer(attach=lambda *given: asked.append(given) or Gone("died"))
    assert await link(syncer).attach(Attach("a", 1, {}), 60.0) is None and len(asked) == 1


def test_rank_0s_loop_does_not_wait_for_the_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given arrays of its own, too: it would wait for the store to take others back."""
    gate, told = threading.Event(), list[Any]()
    monkeypatch.setattr(island.ray, "put", lambda call: gate.wait(DEADLINE_S) and call)
    others = island.RayOthers([SimpleNamespace(put=SimpleNamespace(remote=told.append))])
    value = np.ones(2, np.float32)
    calls = [RankCall(0, "adopt", (0, 1, "rebase", value, None)), RankCall(1, "dispatch", (0, 8, 0.5))]
    for call in calls:
        others.tell(call)
    assert [call.number for call in told] == [1]
    gate.set()
    until(lambda: len(told) == 2, "the call with arrays")
    *_, mine, nothing = owned(told[1].arguments)
    assert mine.tolist() == value.tolist() and not np.shares_memory(mine, value) and nothing is None


def test_that_the_object_store_did_not_take_a_call_is_told_though_another_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(island.ray, "put", lambda call: gate.wait(DEADLINE_S) and {1: call}[call.number])
    others = island.RayOthers([])
    for number in range(2):
        others.tell(RankCall(number, "adopt", ()))
    gate.set()
    until(others._shared.done, "the second")
    with pytest.raises(KeyError):
        others.tell(RankCall(2, "dispatch", ()))


# ------------------------------------------------------------------ versions from a learner of the same region


def version(number: int, snapshot: int = 0) -> Version:
    theta = np.full(4, number, np.float32)
    return Version(number, codecs.digest(theta), theta, snapshot)


def relay(name: str, holds: Callable[[], Any], give: Any = None, snapshot: int = 0) -> Elsewhere:
    """A learner that says what `holds` returns, and gives a version."""
    return Elsewhere(name, FakePeer(holds=lambda fragment, wanted: holds(), received=lambda _: give), snapshot)


async def fetched(*answers: Any, source: Any = None) -> tuple[Any, list[str]]:
    """What a fetch of version 5 returns, and the relays that the syncer was told to have failed, once for each time
    that it was asked.
    """
    coming, failed = deque(answers), list[str]()

    def fetch(fragment: int, wanted: int, held: int, learner: str, why: str) -> Any:
        assert (fragment, wanted, held, learner) == (0, 5, 4, "a")
        failed.append(why)
        return coming.popleft()

    return await link(FakePeer(fetch=fetch)).fetch(0, 5, 4, 60.0, source), failed


@in_a_loop
async def test_a_version_comes_from_the_named_learner_once_that_has_it() -> None:
    coming = deque([False, False, True])
    given, failed = await fetched(relay("b", coming.popleft, version(6, snapshot=1), snapshot=2))
    assert (given.version, given.snapshot, failed) == (6, 2, [""]), "with the newest snapshot that either knew"


@in_a_loop
async def test_the_syncer_is_asked_only_where_whom_the_notice_names_gives_nothing() -> None:
    found = version(5)
    shard = AtShard(FakePeer(fetch=lambda *asked: tuple(found)), 3)
    for source in (relay("b", lambda: True, found, 3), shard):
        given, asked = await fetched(source=source)
        assert (given[0], given[3], asked) == (5, 3, [])
    given, asked = await fetched(found, source=relay("b", lambda: None))
    assert (given.version, asked) == (5, ["b"])
    dead = AtShard(FakePeer(fetch=lambda *asked: Gone("died")), 0)
    assert await fetched(source=dead) == (None, []), "its epoch is over"


@pytest.mark.parametrize(
    ("holds", "gives"),
    [
        (Gone("died"), version(5)),
        (TimeoutError(), version(5)),
        (None, version(5)),
        (True, version(5)._replace(digest="flipped")),
        (True, version(4)),
        (True, None),
        (True, Gone("died")),
    ],
    ids=["dead", "frozen", "has nothing", "damaged", "older", "gives nothing", "dies"],
)
@in_a_loop
async def test_where_the_named_learner_does_not_give_the_version_the_syncer_is_asked_again(
    holds: Any, gives: Any
) -> None:
    given, failed = await fetched(relay("b", lambda: holds, gives), version(5))
    assert (given.version, failed) == (5, ["", "b"])


@in_a_loop
async def test_a_chain_of_learners_that_fail_ends_as_a_failed_fetch() -> None:
    dead = [relay(name, lambda: Gone("died")) for name in "bcde"]
    assert await fetched(*dead) == (None, ["", "b", "c"])


def test_a_learner_of_other_sources_says_so_and_has_its_name_by_then() -> None:
    """Ray asks for the name while it tells of the error; without one it would abort the process."""
    made = object.__new__(actor.LearnerActor)
    with pytest.raises(RuntimeError, match="runs other sources"):
        made.__init__(SimpleNamespace(name="learner-a-0", code="another"), None)  # type: ignore[misc]
    assert repr(made) == "learner-a-0"


@in_a_loop
async def test_a_final_part_waits_for_its_store_and_any_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "AGAIN_S", 0.01)
    away, write = threading.Event(), checkpoint_parts.write

    def refusing(*part: Any) -> dict[str, Any]:
        if away.is_set():
            raise OSError("no space left")
        return write(*part)

    monkeypatch.setattr(checkpoint_parts, "write", refusing)
    away.set()
    writer = CheckpointWriter("a", 1, Folder(tmp_path), FactBuffer(time.time))
    state = ResumeState(1, 8, None, 1, 1, 0.5, [], 0, [], 0)
    snapshot = SimpleNamespace(pack=lambda: ({"leaves": 1}, [np.zeros(2)]))
    writer.save(Save(1, state, False), snapshot)
    with pytest.raises(OSError, match="no space left"):
        await writer.described(1, DEADLINE_S, lambda _: True)
    writer.save(Save(2, state, True), snapshot)
    with pytest.raises(StoreAway, match="the last facts"):
        await writer.described(2, 0.0, lambda _: True)
    writer.finish()
    with pytest.raises(StoreAway, match="no space left"):
        await writer.described(2, 0.2, lambda _: True)
    away.clear()
    described = await writer.described(2, DEADLINE_S, lambda _: True)
    assert described is not None and described["exact"]


@in_a_loop
async def test_a_part_counts_once_the_log_has_every_fact_that_led_to_it(tmp_path: Path) -> None:
    """Seed 10000051 of mixed started a learner from a step that its log never had."""
    facts = FactBuffer(time.time)
    facts.add("StepFinished")
    writer = CheckpointWriter("a", 1, Folder(tmp_path), facts)
    snapshot = SimpleNamespace(pack=lambda: ({"leaves": 1}, [np.zeros(2)]))
    writer.save(Save(1, ResumeState(1, 8, None, 1, 1, 0.5, [], 0, [], 0), False), snapshot)
    assert await writer.described(1, 0.1, lambda _: True) is None
    facts.acknowledge(0)
    assert await writer.described(1, DEADLINE_S, lambda _: True) is not None
