"""Calls between regions that share nothing but a store of objects: each may only create objects, read and remove them.

    mail/TO/FROM/000002/000000017     the 18th batch of FROM's 2nd incarnation for TO
    mail/TO/FROM/000002/large/5       the arrays of its 6th large message, which is in a batch after it
    mail/incarnations/FROM/000002     granted by creation

A chain of batches has one writer, so its reader misses nothing, and no batch comes twice but after a restart. What the
reader says that it has had, the writer removes. A call may be carried out twice, and its answer never come: that is the
port outer.ports.Peer. While nothing is heard of a region, it is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from numpy.typing import NDArray

from orchestrator.regions.wire import PeerName, packed, unpacked
from outer.background import Background
from outer.journal.door import Door
from outer.journal.framing import Damaged, pack, unpack
from outer.journal.object_store import Objects
from outer.ports import Gone, NoAnswer, Peer, Raised, Unreachable, now

FOLDER = "mail"
BEAT_S = 1.0  # without anything to say, a region says that it is there
SILENT_S = 5.0  # after which a region counts as unreachable
LOOK_S = 2.0  # between two looks for regions, or for a later incarnation of one
POLL_S = (0.02, 0.5)  # between two looks for the next batch: at first, and at last
AGAIN_S = 1.0  # until the store is asked again that has failed
AT_ONCE = 4  # batches on their way to one region: where one is there, so is, or was, that before so many
OWED_MOST = 2  # batches that are read before their writer is told, at the latest
LARGE = 2**16  # bytes of arrays that travel in an object of their own
WAITING_MOST = 4096  # messages for a region that do not fit into the store; the oldest are dropped
KEPT_MOST = 64  # batches that a region has not had; to more none is added that says nothing
CAUSES: dict[str, type[Exception]] = {each.__name__: each for each in (Gone, Raised, Unreachable)}

Serve = Callable[[str, str, str, Sequence[Any]], Awaitable[Any]]  # (of which region, process, method, arguments)


class Cause(Exception):
    """What a call raised in another region: the name of the error, and what it said."""


@dataclass
class _Region:
    """Another region: what is on its way to it, and how far it was read."""

    name: str
    waiting: deque[tuple[dict[str, Any], list[NDArray[Any]]]] = field(
        default_factory=lambda: deque(maxlen=WAITING_MOST)
    )
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    kept: dict[int, list[str]] = field(default_factory=dict)  # by batch: its objects, which the region may not have had
    pending: dict[int, asyncio.Future[Any]] = field(default_factory=dict)  # calls that wait for their answer
    incarnation: int = 0  # its newest that is known
    next: int = 0  # its next batch
    open: set[int] = field(default_factory=set)  # batches some of whose arrays are not here yet
    owed: int = 0  # batches with messages that were read since it was told so
    unread: set[int] = field(default_factory=set)  # batches with messages that it may not have had
    heard_at: float = float("-inf")


class Mail:
    """The calls of one region. Use it in one event loop. `me`: its name; `incarnation`: see `granted`."""

    large = LARGE

    def __init__(
        self,
        store: Objects,
        me: str,
        incarnation: int,
        serve: Serve,
        name_of: Callable[[Peer], PeerName],
        peer_of: Callable[[PeerName], Peer],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.me, self.incarnation = me, incarnation
        self._store, self._serve, self._name_of, self._peer_of = store, serve, name_of, peer_of
        self._regions: dict[str, _Region] = {}
        self._background, self._failed = Background(failed), failed
        self._threads = ThreadPoolExecutor(16, "mail")
        self._numbers = count()

    def begin(self, regions: Sequence[str] = ()) -> None:
        """Read what others send, and write to these regions from now on; to others once they have written."""
        for name in regions:
            self._to(name)
        self._background.spawn(self._look())

    def reached(self, region: str) -> bool:
        """Whether a region was heard of lately."""
        other = self._regions.get(region)
        return other is not None and now() - other.heard_at <= SILENT_S

    def view(self) -> dict[str, dict[str, Any]]:
        """By region: seconds since it was heard of, None for never; and how many messages wait for it."""
        at = now()
        return {
            name: {"silent_s": at - other.heard_at if other.incarnation else None, "waiting": len(other.waiting)}
            for name, other in self._regions.items()
        }

    # -------------------------------------------------------------- calls

    async def ask(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> Any:
        """The answer of a process in another region. Raises NoAnswer, and Unsendable."""
        if not self.reached(region):
            raise Unreachable(f"region {region} is silent")
        other, number = self._regions[region], next(self._numbers)
        answer = other.pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(other, {"id": number, "to": name, "method": method}, list(arguments))
            return await answer
        finally:
            del other.pending[number]

    def tell(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> None:
        """Call a method in another region, whenever it can be reached."""
        self._send(self._to(region), {"to": name, "method": method}, list(arguments))

    def _send(self, other: _Region, message: dict[str, Any], value: Any) -> None:
        arrays: list[NDArray[Any]] = []
        message["value"] = packed(value, arrays, self._name_of)
        if sum(each.nbytes for each in arrays) > self.large:
            self._background.spawn(self._send_large(other, message, arrays))
        else:
            other.waiting.append((message, arrays))
            other.wake.set()

    async def _send_large(self, other: _Region, message: dict[str, Any], arrays: list[NDArray[Any]]) -> None:
        """Its arrays go ahead, so that no other message waits for them."""
        name = f"{_folder(other.name, self.me, self.incarnation)}/large/{next(self._numbers)}"
        await self._created(name, {}, arrays)
        other.waiting.append((message | {"large": name}, []))
        other.wake.set()

    async def _created(self, name: str, header: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        parts, _ = await self._in_thread(pack, header, arrays)
        while True:
            try:
                await self._in_thread(self._store.create, name, parts)
                return
            except FileExistsError:
                return  # nobody else writes this name: an answer was lost
            except Exception:  # whatever a store's client raises: it is asked again
                await asyncio.sleep(AGAIN_S)

    def _in_thread(self, work: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    # -------------------------------------------------------------- writing

    def _to(self, name: str) -> _Region:
        if name not in self._regions:
            other = self._regions[name] = _Region(name)
            self._background.spawn(self._write(other))
            self._background.spawn(self._read(other))
        return self._regions[name]

    async def _write(self, other: _Region) -> None:
        """What waits goes out together, and no faster than it is read: so no queue grows in the store."""
        under_way = deque[asyncio.Task[None]]()
        for number in count():
            while not (may_say := bool(other.waiting) and len(other.unread) < AT_ONCE) and other.owed < OWED_MOST:
                other.wake.clear()
                try:
                    await asyncio.wait_for(other.wake.wait(), BEAT_S)
                except TimeoutError:
                    if len(other.kept) < KEPT_MOST:
                        break
            if len(under_way) == AT_ONCE:
                await under_way.popleft()
            sent, arrays, objects = [], list[NDArray[Any]](), [_batch(other.name, self.me, self.incarnation, number)]
            while may_say and other.waiting:
                message, own = other.waiting.popleft()
                sent.append(message | {"arrays": [len(arrays), len(own)]})
                arrays += own
                objects += [message["large"]] if "large" in message else []
            other.kept[number], other.owed = objects, 0
            if sent:
                other.unread.add(number)
            had = [other.incarnation, min(other.open, default=other.next)]
            under_way.append(self._background.spawn(self._created(objects[0], {"had": had, "sent": sent}, arrays)))

    async def _forget(self, other: _Region, incarnation: int, before: int) -> None:
        """The region has had all batches before this one of this incarnation of ours: nobody needs them any more."""
        if incarnation != self.incarnation:
            return
        had = [number for number in other.kept if number < before]
        other.unread.difference_update(had)
        other.wake.set()
        for name in [name for number in had for name in other.kept.pop(number)]:
            await self._removed(name)

    async def _removed(self, name: str) -> None:
        while True:
            with contextlib.suppress(Exception):  # whatever a store's client raises: it is asked again
                await self._in_thread(self._store.remove, name)
                return
            await asyncio.sleep(AGAIN_S)

    # -------------------------------------------------------------- reading

    async def _look(self) -> None:
        """Find the regions that have written."""
        while True:
            with contextlib.suppress(Exception):  # it is asked again
                for name in await self._in_thread(self._store.folders, f"{FOLDER}/{self.me}"):
                    self._to(name)
            await asyncio.sleep(LOOK_S)

    async def _read(self, other: _Region) -> None:
        looked_at, pause_s = float("-inf"), POLL_S[0]
        while True:
            try:
                if await self._read_next(other):
                    pause_s = POLL_S[0]
                    continue
                if now() - looked_at >= LOOK_S:
                    looked_at = now()
                    await self._follow(other)
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, POLL_S[1])
            except Exception:  # whatever a store's client raises: it is asked again
                await asyncio.sleep(AGAIN_S)

    async def _read_next(self, other: _Region) -> bool:
        """Read the next batch, if it is there."""
        try:
            name = _batch(self.me, other.name, other.incarnation, other.next)
            wait = (BEAT_S,) if isinstance(self._store, Door) and other.incarnation else ()
            header, arrays, _ = unpack(await self._in_thread(self._store.read, name, *wait))
        except FileNotFoundError:
            return False
        except Damaged as error:
            self._failed(error)  # who waits for what was in it gives it up
            header, arrays = {"had": [0, 0], "sent": []}, []
        other.heard_at = now()
        self._background.spawn(self._forget(other, *header["had"]))
        number, other.next = other.next, other.next + 1
        if header["sent"]:
            other.owed += 1
            other.wake.set()
        if any("large" in message for message in header["sent"]):
            other.open.add(number)
            self._background.spawn(self._take_large(other, number, header["sent"], arrays))
        else:
            for message in header["sent"]:
                self._take(other, message, arrays)
        return True

    async def _incarnations(self, other: _Region) -> list[int]:
        folder = f"{FOLDER}/{self.me}/{other.name}"
        return sorted(map(int, await self._in_thread(self._store.folders, folder)))

    async def _numbers_of(self, other: _Region, incarnation: int) -> list[int]:
        names = await self._in_thread(self._store.names, _folder(self.me, other.name, incarnation))
        return sorted(int(name.rpartition("/")[2]) for name in names)

    async def _follow(self, other: _Region) -> None:
        """Begin with the oldest batch that is there, and go on with a later incarnation once one has ended.

        That one answers no call of ours to the one before.
        """
        for incarnation in await self._incarnations(other):
            numbers = await self._numbers_of(other, incarnation)
            if incarnation < other.incarnation or not numbers:
                continue
            if incarnation == other.incarnation:
                ahead = [number for number in numbers if number >= other.next]
                if ahead and ahead[-1] >= other.next + AT_ONCE:
                    other.next = ahead[0]  # what is not there was removed: an incarnation of ours before had it
                if other.next in ahead:
                    return
                continue
            folder = _folder(self.me, other.name, other.incarnation)
            for each in (folder, f"{folder}/large") if other.incarnation else ():
                for name in await self._in_thread(self._store.names, each):
                    await self._removed(name)
            other.incarnation, other.next, other.open = incarnation, numbers[0], set()
            for answer in list(other.pending.values()):
                if not answer.done():
                    answer.set_exception(Unreachable(f"region {other.name} has another gateway"))
            return

    async def _take_large(
        self, other: _Region, number: int, sent: Sequence[dict[str, Any]], arrays: Sequence[NDArray[Any]]
    ) -> None:
        incarnation = other.incarnation
        for message in sent:
            if "large" not in message:
                self._take(other, message, arrays)
        for message in (each for each in sent if "large" in each):
            while True:
                try:
                    _, own, _ = unpack(await self._in_thread(self._store.read, message["large"]))
                    self._take(other, message | {"arrays": [0, len(own)]}, own)
                    break
                except (FileNotFoundError, Damaged) as error:
                    self._failed(error)
                    break
                except Exception:  # whatever a store's client raises: it is asked again
                    await asyncio.sleep(AGAIN_S)
        if incarnation == other.incarnation:
            other.open.discard(number)

    def _take(self, other: _Region, message: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        first, many = message["arrays"]
        try:
            value = unpacked(message["value"], arrays[first : first + many], self._peer_of)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self._failed(error)
            return
        if "re" in message:
            incarnation, number = message["re"]
            answer = other.pending.get(number) if incarnation == self.incarnation else None
            if answer is not None and not answer.done():
                _settle(answer, value)
            return
        number = message.get("id")
        about = None if number is None else {"re": [other.incarnation, number]}
        self._background.spawn(self._carry_out(other, message["to"], message["method"], value, about))

    async def _carry_out(
        self, other: _Region, name: str, method: str, arguments: list[Any], about: dict[str, Any] | None
    ) -> None:
        try:
            answer = ("ok", await self._serve(other.name, name, method, arguments))
        except NoAnswer as error:
            answer = (type(error).__name__, (str(error), *_told(error.__cause__)))
        except Exception as error:
            answer = (Raised.__name__, (type(error).__name__, *_told(error)))
        if about is not None:
            self._send(other, about, answer)
        elif answer[0] == Raised.__name__:
            self._failed(Cause(f"{method} of {name}, which region {other.name} told: {': '.join(answer[1])}"))


def _told(error: BaseException | None) -> tuple[str, str]:
    return ("", "") if error is None else (type(error).__name__, str(error))


def _settle(answer: asyncio.Future[Any], value: tuple[str, Any]) -> None:
    outcome, given = value
    if outcome == "ok":
        answer.set_result(given)
        return
    text, cause, said = given
    error = CAUSES.get(outcome, NoAnswer)(text)
    error.__cause__ = Cause(f"{cause}: {said}") if cause else None
    answer.set_exception(error)


def _folder(to: str, source: str, incarnation: int) -> str:
    return f"{FOLDER}/{to}/{source}/{incarnation:06d}"


def _batch(to: str, source: str, incarnation: int, number: int) -> str:
    return f"{_folder(to, source, incarnation)}/{number:09d}"


async def granted(store: Objects, me: str) -> int:
    """The next incarnation's number of a region's mail, once the store answers."""
    while True:
        with contextlib.suppress(Exception):
            return await asyncio.get_running_loop().run_in_executor(None, _grant, store, me)
        await asyncio.sleep(AGAIN_S)


def _grant(store: Objects, me: str) -> int:
    folder = f"{FOLDER}/incarnations/{me}"
    number = max((int(name.rpartition("/")[2]) for name in store.names(folder)), default=0)
    while True:
        number += 1
        with contextlib.suppress(FileExistsError):
            store.create(f"{folder}/{number:06d}", [b""])
            return number
