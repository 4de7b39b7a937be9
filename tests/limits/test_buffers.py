"""What the shells keep in queues and in the store does not grow with the length of a run."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learners.fault_effects import FaultEffects
from learners.link import REPORTS_MAX
from learners.protocol.fact_buffer import ANSWER_MAX, FactBuffer
from learners.shell import LearnerShell
from orchestrator.eventlog.compactor import Compactor
from outer.journal import journal as journals
from outer.journal.groups import FactRun, Logged
from outer.journal.journal import StoredJournal
from outer.protocol.facts import Committed, Participant, StepOpened
from outer.protocol.messages import Attach, Contribution, FragmentCounters, ReadRequest, Report, Stop
from outer.protocol.recorder import INCARNATIONS_KEPT, Recorder, runs_of
from outer.protocol.recovery import Entry
from outer.shell import UNDELIVERED_MAX, Outbox, SyncerShell
from tests.learners.peers import FakePeer, link
from tests.limits.test_machines import deep_size
from tests.orchestrator.eventlog.logs import Memory
from tests.outer.serving import Process
from tests.transcripts.syncer_world import MANIFEST, Bench
from tests.waiting import DEADLINE_S, in_a_loop, until_async

LIMIT = 1000


def test_facts_and_what_is_known_of_them_stay_bounded_while_the_syncer_comes_and_goes() -> None:
    """A learner makes facts all the while; acknowledgements are lost, and at times none comes for thousands of them."""
    chance, now = random.Random(0), [0.0]
    recorder, lost, taken = Recorder(), 0, 0
    for incarnation in range(1, 200):
        buffer = FactBuffer(lambda: 0.0, limit=LIMIT, monotonic=lambda: now[0])
        away_until = 0
        for number in range(1000):
            now[0] += 1.0
            buffer.add(number)
            if number >= away_until and chance.random() < 0.001:
                away_until = number + chance.randrange(3 * LIMIT)
            if number < away_until or chance.random() < 0.5:
                continue
            facts, gone = recorder.take("a", incarnation, buffer.oldest, buffer.pending(ANSWER_MAX))
            lost, taken = lost + (gone is not None), taken + len(facts)
            recorder.mark_durable(runs_of("a", incarnation, facts))
            if chance.random() < 0.9:
                buffer.acknowledge(recorder.durable("a", incarnation))
            assert len(buffer._sent) + len(buffer._waiting) <= LIMIT
        assert len(recorder.state()) <= INCARNATIONS_KEPT and deep_size(recorder) <= 20 * INCARNATIONS_KEPT
    assert taken > 50_000


@pytest.mark.parametrize("answers", [True, False])
@in_a_loop
async def test_what_is_on_its_way_to_incarnations_that_are_gone_is_not_counted_for_ever(answers: bool) -> None:
    peer = Process(SimpleNamespace(inbox=lambda *messages: None) if answers else None)
    tasks: list[asyncio.Task[None]] = []
    outbox = Outbox(lambda work: tasks.append(asyncio.ensure_future(work)), 60.0)
    for incarnation in range(1, 1001):
        for _ in range(3):
            outbox.put("a", incarnation, peer, Stop(1, "over"))
    await asyncio.gather(*tasks)
    assert len(tasks) == 1000 and outbox._waiting == {} and not outbox._calls


@in_a_loop
async def test_messages_that_wait_go_in_one_call_and_are_bounded_and_stop_is_among_them() -> None:
    calls: list[tuple[Any, ...]] = []
    heard, tasks = asyncio.Event(), []

    async def inbox(*messages: Any) -> None:
        calls.append(messages)
        await heard.wait()

    peer = Process(SimpleNamespace(inbox=inbox))
    outbox = Outbox(lambda work: tasks.append(asyncio.ensure_future(work)), DEADLINE_S)
    for number in range(2):
        outbox.put("a", 1, peer, number)  # type: ignore[arg-type]
    while not calls:
        await asyncio.sleep(0)
    for number in range(2, 1000):
        outbox.put("a", 1, peer, number)  # type: ignore[arg-type]
    outbox.put("a", 1, peer, Stop(1, "over"))
    heard.set()
    await asyncio.gather(*tasks)
    assert calls == [(0, 1), (*range(2, 1 + UNDELIVERED_MAX), Stop(1, "over"))]


def test_a_strangers_facts_are_not_taken_and_its_name_is_not_kept() -> None:
    taken: list[str] = []
    log = SimpleNamespace(take=lambda writer, *_: taken.append(writer), durable=lambda *_: -1)
    made = Bench()
    made.join("a")
    syncer = object.__new__(SyncerShell)
    syncer._machine, syncer._log, syncer._peers = made.syncer, log, {}  # type: ignore[assignment]
    syncer._drive, syncer._serving = made.call, asyncio.Event()  # type: ignore[method-assign]
    syncer._serving.set()
    for number in range(1000):
        said = Report(f"stranger-{number}", 1, 1, 1, "stepping", 3.0, 1, 1.0, 10, 0)
        assert asyncio.run(syncer.report(said, [(0, 1.0, "fact")], 0)) == -1
        asyncio.run(syncer.attach(Attach(f"stranger-{number}", 1, MANIFEST), [(0, 1.0, "fact")], 0, Process()))
    assert taken == [] and not syncer._peers
    asyncio.run(syncer.report(made.peers["a"].report(), [(0, 1.0, "fact")], 0))
    assert taken == ["a"]


@in_a_loop
async def test_a_question_that_comes_again_does_not_take_the_answer_of_another() -> None:
    """An epoch's read of the same step and attempt as its predecessor's, which nobody waits for any more."""
    shell = object.__new__(LearnerShell)
    shell._waiting, shell._faults = {}, FaultEffects(lambda: 0.0)
    shell._link = link(FakePeer())
    shell._every_fact = lambda: ([], 0)  # type: ignore[method-assign]
    shell._threads = ThreadPoolExecutor(1)
    encoder = SimpleNamespace(encode=lambda contribution: contribution)
    shell._device = SimpleNamespace(fragment_io=encoder)  # type: ignore[assignment]
    asked: list[ReadRequest] = []
    shell._drive = asked.append  # type: ignore[assignment, method-assign]
    old = asyncio.ensure_future(shell.read(ReadRequest(1, 1, 7, 0, 1, 0.0, 0.2)))
    await until_async(lambda: len(asked) == 1, "the old epoch's read")
    new = asyncio.ensure_future(shell.read(ReadRequest(2, 1, 7, 0, 1, 0.0, DEADLINE_S)))
    await until_async(lambda: len(asked) == 2, "the new epoch's read")
    assert await old == "no_boundary"
    assert set(shell._waiting) == {("read", 2, 7, 1)}, "the new one still waits"
    answer = Contribution("a", 1, 2, 7, 0, 1, 1, 8, FragmentCounters(0, 0, 1, 8), None, "digest")
    shell._waiting["read", 2, 7, 1].set_result(answer)
    found = await new
    assert not isinstance(found, str) and replace(found[0], held_s=answer.held_s) == answer
    assert shell._waiting == {}


@in_a_loop
async def test_reports_that_are_not_answered_and_those_held_back_are_bounded() -> None:
    async def silent() -> None:
        await asyncio.Event().wait()

    now, syncer = [0.0], FakePeer()
    syncer.ask = lambda method, *given: silent()  # type: ignore[assignment, method-assign]
    faults = FaultEffects(lambda: now[0])
    reports = link(syncer, faults=faults)

    async def report(number: int) -> None:
        reports.report(Report("a", 1, 1, number, "stepping", 3.0, number, 1.0, 10, 0))
        while reports._newest is not None:
            await asyncio.sleep(0)

    for number in range(1000):
        await report(number)
    assert len(reports._reports) == REPORTS_MAX
    faults.begin("link", 600.0)
    for number in range(1000, 2000):
        await report(number)
    assert [held.sequence for held in reports._delayed] == list(range(2000 - REPORTS_MAX // 2, 2000))
    now[0] = 601.0
    reports.use(syncer)
    await report(2000)
    assert len(reports._reports) == REPORTS_MAX // 2 + 1 and not reports._delayed


def test_the_journals_objects_its_listing_and_its_memory_stay_as_few_after_thousands_of_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only files and manifests of the log grow in number; with fewer rows in each, so that there are some."""
    monkeypatch.setattr(journals, "SEGMENT_GROUPS", 64)
    store, fragments = Memory(), 4
    journal = StoredJournal(store, "journal", 1, fragments, segmenter=Compactor(store, "syncer"))
    journal.open()
    sizes: list[tuple[int, int]] = []
    number = 0
    for step in range(1, 4001):
        opened = FactRun("syncer", 1, [(number, float(step), StepOpened(step, step % fragments))])
        one = Participant("a", 1, step, step - 1, 1, 8, 1.0, "d", 8 * step)
        record = Committed(step, step % fragments, 1, 0, (one,), 1, "d", 1.0, 8 * step, 0.1, 0.2, 0.3, "why")
        arrays = [np.full(3, step, np.float32)]
        journal.write([opened, Logged(Entry(1, step - 1, record), number + 1, float(step), arrays)])
        number += 2
        if journal.needs_compaction:
            journal.remove(journal.compact())
            if journal.needs_segment:
                journal.segment()
        if step % 100 == 0:
            of_log = sum(name.startswith("log/") for name in store.objects)
            sizes.append((len(store.names("journal")), deep_size(journal) - of_log))
    early, late = sizes[5:15], sizes[-10:]
    assert max(names for names, _ in late) <= max(names for names, _ in early) + 1
    assert max(size for _, size in late) <= 1.25 * max(size for _, size in early)
    assert max(names for names, _ in sizes) < 64 + 3 * journals.SNAPSHOT_GROUPS
    assert len(store.names("log/syncer/segments")) > 10
