"""Bugs in a learner's shell: which call is answered with what, what of its facts is sent, what it fetches and runs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from learners import shell as learner_shell
from learners.fetcher import Fetcher
from learners.link import Link
from learners.protocol.events_effects import Fetch, Fetched, StepDone
from learners.protocol.fact_buffer import FactBuffer
from learners.shell import LearnerShell
from learners.step_runner import StepRunner
from outer.numeric import codec as codecs
from outer.protocol.messages import Report
from tests.simulation.planting import Plant, around, instead, mutant

# ---------------------------------------------------------------- what the syncer asks


@around(LearnerShell, "read")
async def facts_from_before_the_answer(method: Any, self: LearnerShell, request: Any) -> Any:
    """An answer takes along the facts of all that it holds."""
    before = self._facts.everything(), self._facts.oldest
    answer = await method(self, request)
    return answer if isinstance(answer, str) or before[0] is None else (answer[0], *before)


@around(LearnerShell, "_asked")
async def question_never_closed(method: Any, self: LearnerShell, request: Any, key: Any, deadline_s: float) -> Any:
    """A question that is answered, or too old, is forgotten."""
    answer = await method(self, request, key, deadline_s)
    self._waiting[key] = asyncio.get_running_loop().create_future()
    return answer


# ---------------------------------------------------------------- from one epoch to the next


@instead(Link, "use")
def old_syncer_kept(self: Link, syncer: Any) -> None:
    """Once another epoch serves a learner speaks to that."""
    self._replaced.set()
    self._replaced = asyncio.Event()


@around(LearnerShell, "reattach")
async def asked_twice_attached_once(method: Any, self: LearnerShell, *given: Any) -> str:
    """A learner attaches to every epoch that it is told of."""
    if self._machine is not None and self._machine.epoch == getattr(self, "told", None):
        return ""
    self.told = None if self._machine is None else self._machine.epoch  # type: ignore[attr-defined]
    return str(await method(self, *given))


@around(LearnerShell, "_attach")
async def refusal_passed_over(method: Any, self: LearnerShell) -> None:
    """A learner that is refused ends."""
    with contextlib.suppress(learner_shell.SyncerRefused):
        await method(self)


# ---------------------------------------------------------------- reports and facts


@instead(Link, "report")
def reports_once(self: Link, message: Report) -> None:
    """Every report is sent soon."""
    self._newest = message
    if self._reporting is None:
        self._reporting = self._spawn(self._send_reports())


@around(Link, "_report")
async def acknowledged_whatever_the_answer(method: Any, self: Link, message: Report, facts: Any, oldest: int) -> None:
    """Facts are let go once the syncer says that they are durable, and not with its answer."""
    await method(self, message, facts, oldest)
    if facts:
        self.facts.acknowledge(facts[-1][0])


@instead(Link, "flush")
async def ends_with_facts_left(self: Link, patient: bool) -> None:
    """A learner's process ends once its last facts are durable."""


@instead(Link, "record")
async def durable_or_not(self: Link, learner: str, incarnation: int, facts: Any, oldest: int) -> bool:
    """A joiner uses a state once the facts of its donor are durable."""
    return True


@around(FactBuffer, "acknowledge")
def all_that_was_sent_acknowledged(method: Any, self: FactBuffer, sequence: int) -> None:
    """An acknowledgement is for facts up to its number."""
    method(self, sequence)
    if sequence >= 0:
        self._sent.clear()


@instead(FactBuffer, "everything")
def only_what_was_not_sent(self: FactBuffer) -> Any:
    """An answer takes along every fact that is not durable, though it was sent before."""
    return self.pending()


@instead(FactBuffer, "_rewind")
def never_sent_again(self: FactBuffer, now: float) -> None:
    """Facts that were lost on their way are sent again."""


@around(FactBuffer, "_rewind")
def sent_again_behind_the_others(method: Any, self: FactBuffer, now: float) -> None:
    """Facts are sent again before those that were not sent."""
    sent = list(self._sent)
    self._sent.clear()
    method(self, now)
    self._waiting.extend(sent)


# ---------------------------------------------------------------- versions and states


@instead(Fetcher, "_fetch")
async def failed_fetch_blocks_its_fragment(self: Fetcher, wanted: Fetch) -> None:
    """After a download that failed the fragment is fetched again."""
    result = await self._download(wanted)
    if isinstance(result, Fetched):
        self._busy.pop(wanted.fragment)
    self._drive(result)
    self._begin()


@instead(Fetcher, "_fetch")
async def failure_untold(self: Fetcher, wanted: Fetch) -> None:
    """The machine hears of a download that failed."""
    result = await self._download(wanted)
    self._busy.pop(wanted.fragment)
    if isinstance(result, Fetched):
        self._drive(result)
    self._begin()


@mutant
def damaged_version_taken(plant: Plant) -> None:
    """A version that was damaged on its way is not adopted."""

    def fetching(method: Any) -> Any:
        async def fetch(self: Link, *asked: Any) -> Any:
            found = await method(self, *asked)
            return None if found is None else (found[0], codecs.digest(found[2]), *found[2:])

        return fetch

    plant.around(Link, "fetch", fetching)
    plant.around(Fetcher, "fetch", lambda method: lambda self, effect: method(self, replace(effect, digest="")))


@around(Fetcher, "_recover")
async def damaged_state_taken(method: Any, self: Fetcher, effect: Any) -> Any:
    """A state that was damaged on its way is not used."""
    self.fragment_io.state_defect = lambda state: ""  # type: ignore[method-assign,union-attr]
    return await method(self, effect)


# ---------------------------------------------------------------- steps


@instead(StepRunner, "_complete_oldest")
async def told_before_the_step_is_done(self: StepRunner) -> None:
    """The machine hears of a step once that is done."""
    flight = self._flights.popleft()
    self._drive(StepDone(2.0, self._tokens, {}, 0.0))
    await self._pace.result(flight.pending)


@instead(StepRunner, "complete")
async def dropped_when_the_loop_holds(self: StepRunner) -> None:
    """A loop that holds has told of every step in flight."""
    while self._flights:
        await self._pace.result(self._flights.popleft().pending)


@around(StepRunner, "__init__")
def one_step_too_many_in_flight(method: Any, self: StepRunner, *given: Any) -> None:
    """At most so many steps are in flight as the machine counts on."""
    method(self, *given)
    self._depth += 1
