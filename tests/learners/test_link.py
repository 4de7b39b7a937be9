"""The learner's link to the syncer: several threads report, and facts go along until they are durable."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from learners import actor, checkpoint_writer, island, shell
from learners.actor import RayLink
from learners.checkpoint_writer import CheckpointWriter
from learners.fault_effects import FaultEffects
from learners.fetcher import ReceivedVersions, Version
from learners.protocol import fact_buffer
from learners.protocol.events_effects import Resume, Save
from learners.protocol.fact_buffer import ANSWER_MAX, RESEND_S, FactBuffer, read_clocks
from learners.protocol.resume_state import ResumeState
from learners.shell import LearnerShell, ReportSender
from learners.training.island import RankCall
from outer.journal import checkpoint_parts
from outer.journal.object_store import Folder, StoreAway
from outer.numeric import codec as codecs
from outer.protocol.messages import STEPPING, Drain, Report, Stop
from outer.relays import Elsewhere
from tests.waiting import DEADLINE_S, until


class Call:
    """A call of the syncer's, and its answer when there is one."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class FakeSyncer:
    """Takes what is in order and says that it is durable, unless `deaf`."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.sizes: list[int] = []
        self.deaf = False
        self.report = SimpleNamespace(remote=lambda message, facts, oldest: Call(self._take(facts)))
        self.record = SimpleNamespace(remote=lambda learner, incarnation, facts, oldest: Call(self._take(facts)))

    def _take(self, facts: list[Any]) -> Any:
        if self.deaf:
            return ray.exceptions.GetTimeoutError("no answer")
        self.sizes.append(len(facts))
        for number, _, _ in facts:
            if number == len(self.taken):
                self.taken.append(number)
        return len(self.taken) - 1


def get(call: Call, timeout: float) -> Any:
    if isinstance(call.answer, Exception):
        raise call.answer
    return call.answer


@pytest.fixture
def syncer(monkeypatch: pytest.MonkeyPatch) -> FakeSyncer:
    monkeypatch.setattr(actor.ray, "wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr(actor.ray, "get", get)
    return FakeSyncer()


def link(syncer: FakeSyncer) -> RayLink:
    return RayLink("a", syncer, FaultEffects(time.monotonic))


def report(number: int, phase: str = STEPPING) -> Report:
    return Report("a", 1, 1, number, phase, 1.0, 0, 0.1, 0, 0, (), 0, False, None)


def buffer(facts: int, **settings: int) -> FactBuffer:
    made = FactBuffer(time.time, **settings)
    for number in range(facts):
        made.add(number)
    return made


def test_another_thread_may_report_between_the_look_at_an_answer_and_its_taking(
    syncer: FakeSyncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock the second thread takes the only answer, and the first finds none."""
    reports, facts, failed = link(syncer), FactBuffer(time.time), []
    others: deque[threading.Thread] = deque()

    def other() -> None:
        try:
            reports.report(report(3), facts)
        except Exception as error:
            failed.append(error)

    def interrupted(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        monkeypatch.setattr(actor.ray, "wait", lambda calls, timeout: (calls, []))
        others.append(threading.Thread(target=other))
        others[0].start()
        others[0].join(0.5)  # it ends here only if nothing keeps it out
        return calls, []

    reports.report(report(1), facts)
    monkeypatch.setattr(actor.ray, "wait", interrupted)
    reports.report(report(2), facts)
    others[0].join(DEADLINE_S)
    assert failed == []


def test_facts_go_along_once_and_are_forgotten_when_they_are_durable(syncer: FakeSyncer) -> None:
    reports, facts = link(syncer), buffer(3)
    reports.report(report(1), facts)
    reports.report(report(2), facts)
    assert syncer.sizes == [3, 0] and facts.recorded == 3


def test_what_went_with_a_report_that_failed_goes_again_after_a_while(syncer: FakeSyncer) -> None:
    clock = [0.0]
    reports, facts = link(syncer), FactBuffer(time.time, monotonic=lambda: clock[0])
    for number in range(3):
        facts.add(number)
    syncer.deaf = True
    reports.report(report(1), facts)
    syncer.deaf = False
    reports.report(report(2), facts)
    assert syncer.taken == [], "its answer may only be late"
    clock[0] += RESEND_S
    reports.report(report(3), facts)
    reports.report(report(4), facts)
    assert syncer.taken == [0, 1, 2] and facts.recorded == 3


@pytest.mark.parametrize(("durable", "held"), [(2, True), (1, False), (-1, False)])
def test_a_donors_facts_are_durable_only_if_the_last_is(durable: int, held: bool, syncer: FakeSyncer) -> None:
    syncer.record.remote = lambda learner, incarnation, facts, oldest: Call(durable)
    assert link(syncer).record("b", 1, buffer(3).pending(), 0) is held


def test_a_backlog_is_uploaded_beside_the_loop_and_reports_take_none_of_it(syncer: FakeSyncer) -> None:
    reports, facts = link(syncer), buffer(5 * ANSWER_MAX)
    syncer.deaf = True
    for number in range(20):
        reports.report(report(number), facts)
    syncer.deaf = False
    until(lambda: not facts.behind, "the backlog is durable")
    reports.flush("a", 1, facts, False)
    assert facts.recorded == 5 * ANSWER_MAX and syncer.taken == list(range(5 * ANSWER_MAX))
    assert max(syncer.sizes) <= ANSWER_MAX


@pytest.mark.parametrize("patient", [True, False])
def test_the_last_facts_have_a_deadline(syncer: FakeSyncer, monkeypatch: pytest.MonkeyPatch, patient: bool) -> None:
    clock = [0.0]
    monkeypatch.setattr(actor.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(actor.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    syncer.deaf = True
    facts = buffer(3)
    link(syncer).flush("a", 1, facts, patient)
    assert facts.recorded is None and clock[0] >= actor.FLUSH_S
    syncer.deaf, began, record = False, clock[0], syncer.record.remote
    syncer.record.remote = lambda *given: record(*given) if clock[0] > began + 3 * actor.FLUSH_S else Call(-1)
    link(syncer).flush("a", 1, facts, patient)
    assert (facts.recorded == 3) is patient, "the syncer answers, and its store is away"


@pytest.mark.parametrize("deadlines", [[5.0], [30.0, 5.0, 29.0]])
def test_a_learner_that_has_to_leave_ends_some_time_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch, deadlines: list[float]
) -> None:
    started: list[tuple[float, Callable[..., Any]]] = []

    def timer(seconds: float, call: Callable[..., Any], arguments: Any) -> Any:
        return SimpleNamespace(start=lambda: started.append((seconds, call)))

    monkeypatch.setattr(shell.threading, "Timer", timer)
    leaver = LearnerShell.__new__(LearnerShell)
    leaver._lock, leaver._exit_at = threading.Lock(), float("inf")
    monkeypatch.setattr(leaver, "_drive", lambda event: None)
    for deadline_s in deadlines:
        leaver.deliver(Drain(1, 1, "scaled", deadline_s))
    assert started[-1] == (5.0 + shell.LEAVE_MARGIN_S, os._exit) and len(started) <= 2


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


def test_too_many_facts_for_one_answer_have_to_be_uploaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_buffer, "ANSWER_MAX", 3)
    facts = buffer(4)
    assert facts.behind
    assert facts.everything() is None
    assert numbers(facts.pending(4)) == [0, 1, 2, 3], "a refused answer has sent nothing"
    facts.acknowledge(0)
    assert not facts.behind
    assert numbers(facts.everything()) == [1, 2, 3]


def test_a_full_buffer_drops_the_oldest_facts_and_counts_them() -> None:
    facts = buffer(3, limit=3)
    facts.pending(1)
    facts.add(3)
    facts.add(4)
    assert (facts.oldest, facts.dropped, numbers(facts.everything())) == (2, 2, [2, 3, 4])


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


# ------------------------------------------------------------------ in a thread of their own


def test_of_several_that_wait_only_the_newest_is_sent() -> None:
    sent: list[int] = []
    begun, released = threading.Event(), threading.Event()

    def send(message: Report) -> None:
        sent.append(message.sequence)
        begun.set()
        assert released.wait(DEADLINE_S)

    sender = ReportSender(send, lambda: None)
    sender.put(report(1))
    assert begun.wait(DEADLINE_S)
    for sequence in (2, 3, 4):
        sender.put(report(sequence))
    assert not sender.finish(0.0), "one is on its way, and one waits"
    released.set()
    assert sender.finish(DEADLINE_S)
    assert sent == [1, 4]


def test_what_goes_wrong_there_is_raised_in_the_loop() -> None:
    def send(message: Report) -> None:
        raise RuntimeError("gone")

    sender = ReportSender(send, lambda: None)
    sender.put(report(1))
    assert sender.finish(DEADLINE_S)
    with pytest.raises(RuntimeError, match="gone"):
        sender.put(report(2))


def test_what_the_machine_raises_in_another_thread_is_raised_in_the_loop() -> None:
    """The caller that brought the message gets the error too, and may drop it; the machine is of no use any more."""

    def handle(now: float, event: Any) -> list[Any]:
        if isinstance(event, Resume):
            return []
        raise MemoryError("no room")

    shell = object.__new__(LearnerShell)
    shell.__dict__ |= {
        "_machine": SimpleNamespace(handle=handle),
        "_prepared": SimpleNamespace(trainer=None, tokens_per_step=8),
        "_spec": SimpleNamespace(batch_size=2, slowdown=1.0, sync=SimpleNamespace(smoothing=0.1)),
        "_lock": threading.Lock(),
        "_changed": threading.Event(),
        "_failure": None,
        "_faults": None,
        "_facts": SimpleNamespace(add=None),
    }
    with pytest.raises(MemoryError, match="no room"):
        shell.deliver(Stop(1, "over"))
    with pytest.raises(MemoryError, match="no room"):
        shell._loop()


def test_a_syncer_that_cannot_be_reached_for_a_moment_is_asked_to_attach_again(
    syncer: FakeSyncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [ray.exceptions.ActorUnavailableError("timed out", None), "welcome"]
    syncer.attach = SimpleNamespace(remote=lambda *_: Call(answers.pop(0)))  # type: ignore[attr-defined]
    monkeypatch.setattr(actor.ray, "get_runtime_context", lambda: SimpleNamespace(current_actor="me"))
    assert link(syncer).attach("hello", buffer(0)) == "welcome"  # type: ignore[arg-type]


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
    *_, mine, nothing = island.owned(told[1].arguments)
    assert mine.tolist() == value.tolist() and not np.shares_memory(mine, value) and nothing is None


# ------------------------------------------------------------------ versions from a learner of the same region


def version(number: int, snapshot: int = 0) -> Version:
    theta = np.full(4, number, np.float32)
    return Version(number, codecs.digest(theta), theta, snapshot)


def relay(name: str, holds: Callable[[], Any], give: Any = None, snapshot: int = 0) -> Elsewhere:
    """A learner that says what `holds` returns, and gives a version."""
    there = SimpleNamespace(remote=lambda fragment, wanted: Call(holds()))
    return Elsewhere(
        name, SimpleNamespace(holds=there, received=SimpleNamespace(remote=lambda _: Call(give))), snapshot
    )


def fetched(syncer: FakeSyncer, *answers: Any) -> tuple[Any, list[str]]:
    """What a fetch of version 5 returns, and the relays that the syncer was told to have failed."""
    coming, failed = deque(answers), list[str]()

    def fetch(fragment: int, wanted: int, held: int, learner: str, why: str) -> Call:
        assert (fragment, wanted, held, learner) == (0, 5, 4, "a")
        failed.append(why)
        return Call(coming.popleft())

    syncer.fetch = SimpleNamespace(remote=fetch)  # type: ignore[attr-defined]
    return link(syncer).fetch(0, 5, 4, 60.0), failed


def test_a_version_comes_from_the_named_learner_once_that_has_it(syncer: FakeSyncer) -> None:
    coming = deque([False, False, True])
    given, failed = fetched(syncer, relay("b", coming.popleft, version(6, snapshot=1), snapshot=2))
    assert (given.version, given.snapshot, failed) == (6, 2, [""]), "with the newest snapshot that either knew"


@pytest.mark.parametrize(
    ("holds", "gives"),
    [
        (ray.exceptions.RayActorError(), version(5)),
        (ray.exceptions.GetTimeoutError("frozen"), version(5)),
        (None, version(5)),
        (True, version(5)._replace(digest="flipped")),
        (True, version(4)),
        (True, None),
        (True, ray.exceptions.RayActorError()),
    ],
    ids=["dead", "frozen", "has nothing", "damaged", "older", "gives nothing", "dies"],
)
def test_where_the_named_learner_does_not_give_the_version_the_syncer_is_asked_again(
    syncer: FakeSyncer, holds: Any, gives: Any
) -> None:
    given, failed = fetched(syncer, relay("b", lambda: holds, gives), version(5))
    assert (given.version, failed) == (5, ["", "b"])


def test_a_chain_of_learners_that_fail_ends_as_a_failed_fetch(syncer: FakeSyncer) -> None:
    dead = [relay(name, lambda: ray.exceptions.RayActorError()) for name in "bcde"]
    assert fetched(syncer, *dead) == (None, ["", "b", "c"])


def test_the_newest_version_is_kept_until_another_epoch_serves() -> None:
    received = ReceivedVersions()
    for number in (4, 5, 3):
        received.put(0, version(number))
    held = received.newest(0)
    assert held is not None and held.version == 5 and received.newest(1) is None
    received.clear()
    assert received.newest(0) is None


def test_a_learner_of_other_sources_says_so_and_has_its_name_by_then() -> None:
    """Ray asks for the name while it tells of the error; without one it would abort the process."""
    made = object.__new__(actor.LearnerActor)
    with pytest.raises(RuntimeError, match="runs other sources"):
        made.__init__(SimpleNamespace(name="learner-a-0", code="another"), None)  # type: ignore[misc]
    assert repr(made) == "learner-a-0"


def test_a_final_part_waits_for_its_store_and_any_other_is_refused(
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
    writer = CheckpointWriter("a", 1, Folder(tmp_path), lambda: 3)
    state = ResumeState(1, 8, None, 1, 1, 0.5, [], 0, [], 0)
    snapshot = SimpleNamespace(pack=lambda: ({"leaves": 1}, [np.zeros(2)]))
    writer.save(Save(1, state, False), snapshot)
    with pytest.raises(OSError, match="no space left"):
        writer.described(1, DEADLINE_S, lambda _: True)
    writer.save(Save(2, state, True), snapshot)
    with pytest.raises(StoreAway, match="the last facts"):
        writer.described(2, 0.0, lambda _: True)
    writer.finish()
    with pytest.raises(StoreAway, match="no space left"):
        writer.described(2, 0.2, lambda _: True)
    away.clear()
    described = writer.described(2, DEADLINE_S, lambda _: True)
    assert described is not None and described["exact"]
