"""The gateway of one region: through it alone its processes call those of other regions, and are called.

The orchestrator's region starts the processes of the others through their gateways; see orchestrator/regions/joined.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.lifecycle.ports import Places, Processes
from orchestrator.regions.mail import CAUSES, Cause, Mail
from orchestrator.regions.wire import PeerName
from outer.journal.object_store import Objects
from outer.ports import Gone, NoAnswer, Peer, Unreachable, insist, now

GATEWAY = "gateway"  # the name of each region's
# What a region may call in others, and what only the orchestrator's may.
OPEN = frozenset({"attach", "report", "record", "seek", "fetch", "donate", "holds", "received"})
HOME_ONLY = frozenset(
    {"identify", "run", "follow", "lead", "reattach", "progress", "saved", "disturb", "inbox", "read", "held"}
) | {"held_versions"}
# What home alone may call of a joined region's gateway: methods of its Places, and of its Processes.
OF_PLACES, OF_PROCESSES = ("claim", "wait", "pending", "adopt", "release"), ("kill", "unseen", "notices")
COMES_S = 3.0  # for a process that is asked to be started
VIEW_S = 1.0  # for the store to let it begin
OVER_S = 60.0  # to say that the run is over


@dataclass(frozen=True)
class RegionPeer:
    """A process in another region, through the gateway of one's own.

    Its node's id is known there alone, so that it is told with the region before it.
    """

    gateway: Peer
    region: str
    name: str

    async def ask(self, method: str, *arguments: Any) -> Any:
        try:
            outcome, given = await self.gateway.ask("relay", self.region, self.name, method, arguments)
        except (Gone, Unreachable) as error:
            raise Unreachable("the gateway of its own region does not answer") from error
        if outcome == "ok":
            at = method == "identify" and given.get("node")
            return given | {"node": f"{self.region}/{at}"} if at else given
        text, cause = given
        raise CAUSES.get(outcome, NoAnswer)(text) from (Cause(cause) if cause else None)

    def tell(self, method: str, *arguments: Any) -> None:
        self.gateway.tell("forward", self.region, self.name, method, arguments)


async def say_over(gateway: Peer) -> None:
    """The run is over, or this session of it: home's gateway says so in the store."""
    with contextlib.suppress(NoAnswer, TimeoutError):  # else who has joined waits for home
        await asyncio.wait_for(insist(partial(gateway.ask, "close")), OVER_S)


class Absent:
    """A process that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def ask(self, method: str, *arguments: Any) -> Any:
        raise Gone(f"there is no {self._name}")

    def tell(self, method: str, *arguments: Any) -> None:
        pass


class GatewayShell:
    """`find` gives a process of this region by its name, `name_of` the name of one. `me`: the gateway, for others here.

    `places` and `processes`: of a region that has joined; its learners are started there.
    """

    _made = Mail

    def __init__(
        self,
        region: str,
        home: str,
        store: Objects,
        me: Peer,
        find: Callable[[str], Peer | None],
        name_of: Callable[[Peer], str],
        failed: Callable[[BaseException], object],
        places: Places | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.region = region
        self._home, self._me, self._find, self._local_name = home, me, find, name_of
        self._places, self._processes = places, processes
        self._mail = self._made(store, region, home, self._serve, self._name_of, self._peer_of, failed)
        self._beginning: asyncio.Task[None] | None = None

    async def _begun(self) -> Mail:
        """The mail: begun by the first call, also after this process was started again. Raises PermissionError."""
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._mail.begin())
        await asyncio.shield(self._beginning)
        return self._mail

    # -------------------------------------------------------------- called by this region's processes

    async def view(self) -> dict[str, Any]:
        """Whether the other regions are heard of, and whether the run is over. Raises PermissionError."""
        mail = self._mail
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._begun(), VIEW_S)
        told = {name: getattr(mail, name) for name in ("incarnation", "over", "fenced", "trouble")}
        return {"region": self.region, "regions": mail.view(), **told}

    async def relay(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """The answer of a process in another region, or the kind of error, its text and its cause."""
        try:
            return "ok", await (await self._begun()).ask(region, name, method, arguments)
        except NoAnswer as error:
            return type(error).__name__, (str(error), "" if error.__cause__ is None else str(error.__cause__))

    async def forward(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> None:
        """Call a process in another region, whenever it can be reached."""
        (await self._begun()).tell(region, name, method, arguments)

    async def close(self) -> None:
        """The run is over: say so in the store, where the other regions look for it."""
        await (await self._begun()).end()

    # -------------------------------------------------------------- called by other regions

    def _name_of(self, peer: Peer) -> PeerName:
        if isinstance(peer, RegionPeer):
            return peer.region, peer.name
        return self.region, self._local_name(peer)

    def _peer_of(self, name: PeerName) -> Peer:
        region, process = name
        if region == self.region:
            return self._find(process) or Absent(process)
        return RegionPeer(self._me, region, process)

    async def _serve(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> Any:
        home = region == self._home
        if name != GATEWAY and method in (OPEN | HOME_ONLY if home else OPEN):
            return await (await self._there_is(name, method)).ask(method, *arguments)
        served = None
        if name == GATEWAY and home:
            part = self._places if method in OF_PLACES else self._processes if method in OF_PROCESSES else None
            served = getattr(part, method, None) or getattr(self, f"serve_{method}", None)
        if served is None:
            raise PermissionError(f"region {region} may not call {method} of {name}")
        answer = served(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def _there_is(self, name: str, method: str) -> Peer:
        """The process; one that is asked first who it is may be about to start: nothing keeps calls in order."""
        give_up_at = now() + (COMES_S if method == "identify" else 0.0)
        while (peer := self._find(name)) is None and now() < give_up_at:
            await asyncio.sleep(COMES_S / 30.0)
        return peer or Absent(name)

    async def serve_start_learner(self, ranks: list[str], *given: Any) -> None:
        """`ranks`: their processes' names. One of them is there where this call comes twice."""
        if not any(map(self._find, ranks)):
            self._of_joined().start_learner(*given)

    async def serve_end(self, name: str) -> None:
        if (process := self._find(name)) is not None:
            self._of_joined().end(process)

    def _of_joined(self) -> Processes:
        assert self._processes is not None, "only home calls this, and only elsewhere"
        return self._processes
