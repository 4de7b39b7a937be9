"""Calls between simulated processes: a question, its answer, and a deadline, over a network that may lose either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.simulation.process import Process


class Network(Protocol):
    """The network port of a world. Small messages have size 0; the unit of other sizes is the network's own."""

    state_size: int  # of a learner's whole state

    def up_size(self, fragment: int, codec: str) -> float:
        """Size of a learner's contribution in a number format; "" is the run's."""

    def down_size(self, fragment: int) -> float:
        """Size of a published version."""

    def links(self, learner: Any) -> tuple[Any, Any]:
        """A learner's links to the syncer and back."""

    def peer_links(self, one: Any, other: Any) -> tuple[Any, Any]:
        """The links from one learner to another and back."""

    def carry(self, link: Any, size: float, target: Process, happen: Callable[..., Any], *args: Any) -> int:
        """Bring a message over a link to a process. Returns how many copies are on their way."""


class Call:
    """A question that waits for its answer until its deadline. Question and answer travel like any message."""

    __slots__ = (
        "_answered", "_back", "_failed", "_network", "caller", "done", "message", "repeats",
    )  # fmt: skip

    def __init__(
        self,
        network: Network,
        caller: Process,
        back: Any,
        message: Any,
        answered: Callable[[Any], None],
        failed: Callable[[str], None],
        repeats: bool = False,
    ) -> None:
        self.caller, self.message = caller, message
        self.done = False
        self.repeats = repeats  # late and repeated answers are handed over too
        self._network, self._back, self._answered, self._failed = network, back, answered, failed

    def reply(self, size: float, answer: Any) -> None:
        """Answer, from the process that was asked."""
        self._network.carry(self._back, size, self.caller, self._arrive, answer)

    def died(self) -> None:
        """The process that was asked is dead, and the caller's own system says so."""
        self._network.carry(self._back, 0.0, self.caller, self._fail, "ActorDiedError")

    def expire(self) -> None:
        """The caller's deadline has passed."""
        if not self.done:
            self.caller.deliver(self._fail, "GetTimeoutError")

    def _fail(self, reason: str) -> None:
        if not self.done:
            self.done = True
            self._failed(reason)

    def _arrive(self, answer: Any) -> None:
        if self.repeats or not self.done:
            self.done = True
            self._answered(answer)


def ask(
    network: Network,
    caller: Process,
    target: Process,
    links: tuple[Any, Any],
    handler: Callable[[Call], None],
    message: Any,
    deadline_s: float,
    answered: Callable[[Any], None],
    failed: Callable[[str], None],
    repeats: bool = False,
) -> None:
    """Put a question to a process over the links there and back. One of the two callbacks is called once."""
    call = Call(network, caller, links[1], message, answered, failed, repeats)
    network.carry(links[0], 0.0, target, handler, call)
    caller.time.after(deadline_s / caller.host.rate, call.expire)
