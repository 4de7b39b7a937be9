"""Calls between simulated processes: the port outer.ports.Peer over a network that may lose question or answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Protocol

from orchestrator.simulation.process import Process, ProcessLoop
from outer.ports import Gone, Raised, Unreachable


class Network(Protocol):
    """The network port of a world."""

    def asking(self, source: Process, target: Process, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call as they really leave."""
        return arguments

    def answering(self, source: Process, target: Process, method: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        """The answer of a call as it really leaves."""
        return answer

    def carry(
        self, source: Process, target: Process, method: str, answer: Any, happen: Callable[..., Any], *args: Any
    ) -> int:
        """Bring the question of a call (its `answer` is None), or the answer, to a process.

        Returns how many copies are on their way.
        """

    def lost_s(self) -> float:
        """Seconds until a caller hears that question or answer was lost."""
        return 0.0


@dataclass(frozen=True)
class SimPeer:
    """A process, for others."""

    network: Network
    process: Process

    def ask(self, method: str, *arguments: Any) -> Awaitable[Any]:
        return Call(self.network, self.process, method, arguments).answer

    def tell(self, method: str, *arguments: Any) -> None:
        Call(self.network, self.process, method, arguments)

    def __repr__(self) -> str:
        return self.process.label


class Call:
    """A question that waits for its answer. Question and answer travel like any message, and may come twice."""

    __slots__ = ("_arguments", "_caller", "_method", "_network", "_target", "answer")

    def __init__(self, network: Network, target: Process, method: str, arguments: tuple[Any, ...]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self._network, self._caller, self._target = network, loop.process, target
        self._method, self._arguments = method, network.asking(self._caller, target, method, arguments)
        self.answer = loop.create_future()
        self.answer.add_done_callback(self._over)
        target.mourn(self._gone)
        self._carried(network.carry(self._caller, target, method, None, self._arrive))

    def _over(self, answer: asyncio.Future[Any]) -> None:
        self._target.forget(self._gone)
        if not answer.cancelled():
            answer.exception()  # nobody need hear of it

    def _gone(self) -> None:
        """The process that was asked is dead, and the caller's own system says so, sooner or later."""
        if seconds := self._caller.notice_s(self._target):
            self._caller.time.reach(seconds, self._caller, self._bereave)
        else:
            self._bereave()

    def _bereave(self) -> None:
        dead = self._target, self._caller, self._method, None, self._resolve, None, Gone("ActorDiedError")
        self._carried(self._network.carry(*dead))

    def _arrive(self) -> None:
        try:
            given = getattr(self._target.shell, self._method)(*self._arguments)
        except Exception as error:
            self._reply(None, error)
            return
        if isinstance(given, CoroutineType):
            self._target.task(given).add_done_callback(self._answered)
        else:
            self._reply(given, None)

    def _answered(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._reply(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._reply(None, error)
        else:
            self._reply(task.result(), None)

    def _reply(self, given: Any, raised: BaseException | None) -> None:
        error = None
        if raised is not None:
            error = Raised(type(raised).__name__)
            error.__cause__ = raised
        else:
            call = self._target, self._caller, self._method, self._arguments
            given = self._network.answering(*call, given)
        back = self._target, self._caller, self._method
        self._carried(self._network.carry(*back, given, self._resolve, given, error))

    def _carried(self, copies: int) -> None:
        """The transport says so when it has lost a message."""
        if not copies:
            lost = Unreachable("ActorUnavailableError")
            self._caller.time.reach(self._network.lost_s(), self._caller, self._resolve, None, lost)

    def _resolve(self, given: Any, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(given)
        else:
            self.answer.set_exception(error)
