"""Bugs in the syncer's shell: what is told before it is so, what is kept or forgotten, and who hears of it."""

from __future__ import annotations

import asyncio
from typing import Any

from outer.background import Background
from outer.journal.groups import FactRun, Item, Logged, runs
from outer.journal.journal import StaleEpoch, StoredJournal
from outer.journal.journal_writer import JournalWriter
from outer.log_feed import LogFeed
from outer.numeric import codec as codecs
from outer.ports import NoAnswer
from outer.protocol.events_effects import Merge
from outer.shard import Answer, FragmentShard, Token
from outer.shell import Outbox, SyncerShell
from tests.simulation.planting import Plant, around, instead, mutant

# ---------------------------------------------------------------- the journal


@around(JournalWriter, "_write_group")
async def durable_before_the_write(method: Any, self: JournalWriter, items: list[Item]) -> None:
    """The machine hears that a record is durable once its group is written."""
    if logged := [item for item in items if isinstance(item, Logged)]:
        self._durable(logged[-1].entry.sequence)
    durable, self._durable = self._durable, lambda sequence: None
    await method(self, items)
    self._durable = durable


@around(JournalWriter, "note")
def acknowledged_when_noted(method: Any, self: JournalWriter, *facts: Any) -> None:
    """A fact that waits for the store is not acknowledged."""
    method(self, *facts)
    if facts[2]:
        self._recorded(runs(FactRun(*facts)))


@around(JournalWriter, "_persist")
async def stale_epoch_swallowed(method: Any, self: JournalWriter, *work: Any) -> Any:
    """A write that a newer epoch has prevented is no write."""
    try:
        return await method(self, *work)
    except StaleEpoch:
        return []


@instead(JournalWriter, "_persist")
async def write_given_up(self: JournalWriter, executor: Any, work: Any, *arguments: Any) -> Any:
    """A write that the store refuses is tried until it succeeds."""
    for _ in range(2):
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
        except OSError:
            await asyncio.sleep(0.1)
    return []


@instead(JournalWriter, "_begin")
def two_writes_at_once(self: JournalWriter) -> None:
    """One group is written after the other."""
    if not self._broken:
        self._writing = self._background.spawn(self._write())


@around(JournalWriter, "_write_group")
async def what_came_during_a_write_is_lost(method: Any, self: JournalWriter, items: list[Item]) -> None:
    """What arrives during a write is in the next group."""
    await method(self, items)
    self._waiting = [item for item in self._waiting if isinstance(item, Logged)]


@around(JournalWriter, "_flush")
def flush_without_a_record(method: Any, self: JournalWriter) -> None:
    """Facts that no record follows are written after a while."""
    if any(isinstance(item, Logged) for item in self._waiting):
        method(self)


@instead(StoredJournal, "_is_there")
def whatever_is_there_is_ones_own(self: StoredJournal, position: int, seal: str) -> bool:
    """A group that another epoch has written at one's position is not one's own."""
    return self._exists(position)


@around(StoredJournal, "compact")
def removed_before_it_is_in_a_segment(method: Any, self: StoredJournal) -> list[int]:
    """A group is removed once its facts are in a segment of the log."""
    method(self)
    return sorted(self._removable - {self._after, self._opening.position, *(at for at, _ in self._newest_at.values())})


@around(StoredJournal, "compact")
def newest_value_removed(method: Any, self: StoredJournal) -> list[int]:
    """The group that holds a fragment's newest value is not removed."""
    newest, self._newest_at = self._newest_at, {}
    removable: list[int] = method(self)
    self._newest_at = newest
    return removable


# ---------------------------------------------------------------- facts


@instead(LogFeed, "recorded")
def durable_facts_not_marked(self: LogFeed, done: Any) -> None:
    """Who waits until its facts are durable hears of it, and others with their next report."""
    self._news.set()
    self._news = asyncio.Event()


@around(LogFeed, "take")
def facts_of_a_gone_incarnation_taken(method: Any, self: LogFeed, writer: str, incarnation: int, *facts: Any) -> bool:
    """Facts go into the log under the incarnation that says them."""
    newest = max((which for who, which in self._recorder._taken if who == writer), default=incarnation)
    return bool(method(self, writer, newest, *facts))


@around(FragmentShard, "read")
async def facts_of_an_answer_dropped(method: Any, self: FragmentShard, *asked: Any) -> Any:
    """What a contribution is made of is in the log before the commit that holds it."""
    answer = await method(self, *asked)
    if isinstance(answer, Answer):
        return answer._replace(facts=[], oldest=0)
    return answer


# ---------------------------------------------------------------- tasks, timers, messages


@instead(Background, "_done")
def error_of_a_task_swallowed(self: Background, task: asyncio.Task[Any]) -> None:
    """An epoch whose background work fails is over."""
    self.running.discard(task)
    if not task.cancelled():
        task.exception()


@instead(Outbox, "_deliver")
async def mute_after_a_lost_call(self: Outbox, key: tuple[str, int], peer: Any) -> None:
    """After a call that did not arrive the next messages are sent all the same."""
    try:
        while ready := self._waiting.pop(key, None):
            await asyncio.wait_for(peer.ask("inbox", *ready), self._deadline_s)
    except (NoAnswer, TimeoutError):
        self._calls[key] += 8
    self._calls[key] -= 1


# ---------------------------------------------------------------- calls


@instead(SyncerShell, "_depose")
def goes_on_when_deposed(self: SyncerShell, why: str) -> None:
    """An epoch that is deposed ends."""


@around(SyncerShell, "_take")
def facts_of_reports_not_taken(method: Any, self: SyncerShell, *given: Any) -> None:
    """The facts that come with a report go into the log."""


# ---------------------------------------------------------------- fragments


@mutant
def payloads_never_forgotten(plant: Plant) -> None:
    """The payload of a read that is closed is forgotten."""
    plant.put(FragmentShard, "forget", lambda self, tokens: None)


@around(FragmentShard, "forget")
def payloads_forgotten_too_early(method: Any, self: FragmentShard, tokens: Any) -> None:
    """The payload of a read that is open is kept."""
    method(self, [held for held in self._payloads if any(held.read[0] <= each.read[0] + 1 for each in tokens)])


@around(FragmentShard, "merge")
def payload_of_another_read(method: Any, self: FragmentShard, merge: Merge, base: int) -> Any:
    """A merge takes the payloads of its own reads."""
    for token in merge.payloads:
        first = next((each for each in self._payloads if each.learner == token.learner), token)
        if token in self._payloads:
            self._payloads[token] = self._payloads[first]
    return method(self, merge, base)


@around(FragmentShard, "read")
async def first_answer_of_a_step_kept(method: Any, self: FragmentShard, learner: str, peer: Any, request: Any) -> Any:
    """An answer to a later attempt takes the place of none before it."""
    answer = await method(self, learner, peer, request)
    if isinstance(answer, Answer) and isinstance(answer.contribution.payload, Token):
        token = Token((request.syncer_step, 1, request.incarnation), learner)
        self._payloads.setdefault(token, self._payloads[answer.contribution.payload])
        self._payloads[answer.contribution.payload] = self._payloads[token]
    return answer


@around(FragmentShard, "install")
def digest_of_the_version_before(method: Any, self: FragmentShard, fragment: int, version: int) -> None:
    """A version goes out with its own digest."""
    before = self.newest(fragment, -1).digest
    method(self, fragment, version)
    self._digests[fragment] = before


@mutant
def version_before_served(plant: Plant) -> None:
    """What goes out under a version's number is that version."""

    def installing(method: Any) -> Any:
        def install(self: Any, fragment: int, version: int) -> None:
            self.before = {**getattr(self, "before", {}), fragment: self.parameters.thetas[fragment]}
            method(self, fragment, version)

        return install

    def serving(method: Any) -> Any:
        def newest(self: Any, fragment: int, held: int) -> Any:
            found = method(self, fragment, held)
            value = getattr(self, "before", {}).get(fragment, found.value)
            return found._replace(value=value, digest=codecs.digest(value))

        return newest

    plant.around(FragmentShard, "install", installing)
    plant.around(FragmentShard, "newest", serving)
