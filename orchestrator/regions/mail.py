"""Calls between regions that share nothing but a store of objects: each may only create objects, read and remove them.

    mail/TO/FROM/000002/000000017     the 18th batch of FROM's 2nd incarnation for TO
    mail/TO/FROM/000002/large/5       the arrays of its 6th large message, which is in a batch after it
    mail/incarnations/FROM/000002     granted by creation: the one before sends and serves nothing from then on
    mail/over/000002                  the session of the run is over whose home's incarnation this is

A chain of batches has one writer, so its reader misses nothing, and no batch comes twice but after a restart. What the
reader says that it has had, the writer removes. A call may be carried out twice, and its answer never come: that is the
port outer.ports.Peer. While nothing is heard of a region, it is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
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
LARGE_AT_ONCE = 8  # objects with arrays on their way: no batch waits for them
OWED_MOST = 2  # batches that are read before their writer is told, at the latest
LARGE = 2**16  # bytes of arrays that travel in an object of their own
WAITING_MOST = 4096  # messages for a region that do not fit into the store; the oldest are dropped
GRANTS_KEPT = 256  # of a region's, the newest: one that was removed could be given again on a stale reading
UNREAD_MOST = 3  # batches that a region has not read, as it is cut off; to more none is added that says nothing new
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
    sent_in: dict[int, int] = field(default_factory=dict)  # of these, those that are in a batch, and in which
    incarnation: int = 0  # its newest that is known
    next: int = 0  # its next batch
    read: int = 0  # the first of ours that it may not have read
    open: set[int] = field(default_factory=set)  # batches that were read, some of whose arrays are not here yet
    told: int = -1  # what `next` was when it was last told
    owed: int = 0  # batches with messages that were read since it was told so
    unread: set[int] = field(default_factory=set)  # batches with messages that it may not have had
    heard_at: float = float("-inf")


class Mail:
    """The calls of one region, `me`; `home` is the orchestrator's. Use it in one event loop."""

    large = LARGE
    incarnation = 0  # as soon as it has begun
    fenced = False  # this region has a later incarnation
    over = False  # the run is, or the session of it that this region was a part of
    _since = 0  # home's incarnation when it began
    trouble = ""  # what the store said that did not do what it was asked; empty: it did

    def __init__(
        self,
        store: Objects,
        me: str,
        home: str,
        serve: Serve,
        name_of: Callable[[Peer], PeerName],
        peer_of: Callable[[PeerName], Peer],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.me, self._home = me, home
        self._store, self._serve, self._name_of, self._peer_of = store, serve, name_of, peer_of
        self._regions: dict[str, _Region] = {}
        self._background, self._failed = Background(failed), failed
        self._threads, self._large_threads = ThreadPoolExecutor(64, "mail"), ThreadPoolExecutor(LARGE_AT_ONCE, "large")
        self._numbers = count()

    async def begin(self) -> None:
        """Read what others send, and write home from now on; to others once they have written.

        Raises PermissionError where the store gives this region no right to.
        """
        self.incarnation, before = await self._insist(_grant, self._store, self.me, unless=PermissionError)
        for name in before[:-GRANTS_KEPT]:
            self._background.spawn(self._removed(name))
        if self.me != self._home:
            self._since = await self._newest(f"incarnations/{self._home}")
            self._to(self._home)
        self._background.spawn(self._look())

    async def end(self) -> None:
        """Home alone says that the run is over; other regions look for it."""
        await self._created(f"{FOLDER}/over/{self.incarnation:06d}", {}, [])

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
        if self.fenced or not self.reached(region):
            raise Unreachable(f"region {self.me} has another gateway" if self.fenced else f"region {region} is silent")
        other, number = self._regions[region], next(self._numbers)
        answer = other.pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(other, {"id": number, "to": name, "method": method}, list(arguments))
            return await answer
        finally:
            other.pending.pop(number, None)
            other.sent_in.pop(number, None)

    def tell(self, region: str, name: str, method: str, arguments: Sequence[Any]) -> None:
        """Call a method in another region, whenever it can be reached."""
        if not self.fenced:
            self._send(self._to(region), {"to": name, "method": method}, list(arguments))

    def _send(self, other: _Region, message: dict[str, Any], value: Any) -> None:
        arrays: list[NDArray[Any]] = []
        message["value"] = packed(value, arrays, self._name_of)
        if sum(each.nbytes for each in arrays) > self.large:
            self._background.spawn(self._send_large(other, message, arrays))
        else:
            self._queue(other, message, arrays)

    async def _send_large(self, other: _Region, message: dict[str, Any], arrays: list[NDArray[Any]]) -> None:
        """Its arrays go ahead, so that no other message waits for them."""
        name = f"{_large(other.name, self.me, self.incarnation)}/{next(self._numbers)}"
        about = {"large": name, "size": await self._created(name, {}, arrays, self._large_threads)}
        self._queue(other, message | about, [])

    def _queue(self, other: _Region, message: dict[str, Any], arrays: list[NDArray[Any]]) -> None:
        if len(other.waiting) == WAITING_MOST:
            dropped, _ = other.waiting.popleft()
            self._give_up(other, [dropped["id"]] if "id" in dropped else [], "too much waits for it")
            if "large" in dropped:
                self._background.spawn(self._removed(dropped["large"]))
        other.waiting.append((message, arrays))
        other.wake.set()

    def _give_up(self, other: _Region, calls: Sequence[int], why: str) -> None:
        """These calls have no answer."""
        for number in calls:
            if (answer := other.pending.pop(number, None)) is not None and not answer.done():
                answer.set_exception(Unreachable(f"region {other.name}: {why}"))

    async def _created(
        self, name: str, header: dict[str, Any], arrays: Sequence[NDArray[Any]], threads: Executor | None = None
    ) -> int:
        parts, _ = await self._in_thread(pack, header, arrays, threads=threads)
        with contextlib.suppress(FileExistsError):  # nobody else writes this name: an answer was lost
            await self._insist(self._store.create, name, parts, threads=threads)
        return sum(memoryview(part).nbytes for part in parts)

    async def _removed(self, name: str) -> None:
        await self._insist(self._store.remove, name)

    async def _insist(
        self,
        work: Callable[..., Any],
        *given: Any,
        threads: Executor | None = None,
        unless: type[BaseException] = FileExistsError,
    ) -> Any:
        """What a store answers, which is asked again whatever its client raises but this, or FileNotFoundError."""
        while True:
            try:
                answer = await self._in_thread(work, *given, threads=threads)
                self.trouble = ""
                return answer
            except (unless, FileExistsError, FileNotFoundError):
                raise
            except Exception as error:
                self.trouble = f"{type(error).__name__}: {error}"
                await asyncio.sleep(AGAIN_S)

    def _in_thread(self, work: Callable[..., Any], *given: Any, threads: Executor | None = None) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(threads or self._threads, work, *given)

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
            beat_at = now() + BEAT_S
            while not (may_say := bool(other.waiting) and len(other.unread) < AT_ONCE) and other.owed < OWED_MOST:
                may_beat = number - other.read < UNREAD_MOST or other.next != other.told
                if (left_s := beat_at - now()) <= 0.0 and may_beat:
                    break
                other.wake.clear()
                with contextlib.suppress(TimeoutError):  # not wait_for, which may pass over that it is cancelled
                    async with asyncio.timeout(left_s if left_s > 0.0 else BEAT_S):
                        await other.wake.wait()
            if len(under_way) == AT_ONCE:
                await under_way.popleft()
            sent, arrays, objects = [], list[NDArray[Any]](), [_batch(other.name, self.me, self.incarnation, number)]
            while may_say and other.waiting:
                message, own = other.waiting.popleft()
                if message.get("id") in other.pending:
                    other.sent_in[message["id"]] = number
                sent.append(message | {"arrays": [len(arrays), len(own)]})
                arrays += own
                objects += [message["large"]] if "large" in message else []
            other.kept[number], other.owed = objects, 0
            if sent:
                other.unread.add(number)
            other.told, had = other.next, [other.incarnation, other.next, min(other.open, default=other.next)]
            under_way.append(self._background.spawn(self._put(other, number, {"had": had, "sent": sent}, arrays)))

    async def _put(self, other: _Region, number: int, header: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        await self._created(name := _batch(other.name, self.me, self.incarnation, number), header, arrays)
        if number not in other.kept:  # it was had and removed, and this may have been a second try
            await self._removed(name)

    async def _forget(self, other: _Region, incarnation: int, read: int, had: int) -> None:
        """Of this incarnation of ours the batches before `read` were read; those before `had` nobody needs any more."""
        if incarnation != self.incarnation:
            return
        other.read = max(other.read, read)
        other.unread = {number for number in other.unread if number >= read}
        other.wake.set()
        for name in [name for number in sorted(other.kept) if number < had for name in other.kept.pop(number)]:
            await self._removed(name)

    # -------------------------------------------------------------- reading

    async def _look(self) -> None:
        """Find the regions that have written; whether this one has a later incarnation, and whether the run is over."""
        while not self.fenced:
            if await self._newest(f"incarnations/{self.me}") > self.incarnation:
                self.fenced = True
                for task in self._background.running - {asyncio.current_task()}:
                    task.cancel()
                for other in self._regions.values():
                    self._give_up(other, list(other.pending), "another gateway speaks for this region")
                return
            for name in await self._insist(self._store.folders, f"{FOLDER}/{self.me}"):
                self._to(name)
            self.over = await self._newest("over") >= max(1, self._since)
            await asyncio.sleep(LOOK_S)

    async def _newest(self, folder: str) -> int:
        names = await self._insist(self._store.names, f"{FOLDER}/{folder}")
        return max((int(name.rpartition("/")[2]) for name in names), default=0)

    async def _read(self, other: _Region) -> None:
        looked_at, pause_s = float("-inf"), POLL_S[0]
        while True:
            if await self._read_next(other):
                pause_s = POLL_S[0]
                continue
            if now() - looked_at >= LOOK_S:
                looked_at = now()
                await self._follow(other)
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, POLL_S[1])

    async def _read_next(self, other: _Region) -> bool:
        """Read the next batch, if it is there."""
        wait = (BEAT_S,) if isinstance(self._store, Door) and other.incarnation else ()
        try:
            given = await self._insist(
                self._store.read, _batch(self.me, other.name, other.incarnation, other.next), *wait
            )
        except FileNotFoundError:
            return False
        try:
            header, arrays, _ = unpack(given)
            incarnation, read, had = map(int, header["had"])
            sent = [message for message in header["sent"] if isinstance(message, dict)]
            large = [message for message in sent if "large" in message]
            self._background.spawn(self._forget(other, incarnation, read, had))
        except (Damaged, LookupError, TypeError, ValueError) as error:
            self._failed(error)
            self._give_up(other, list(other.pending), "a batch of its is damaged")
            self._queue(other, {"lost": [other.incarnation, other.next]}, [])  # it gives up what it asked there
            sent, arrays, large = [], [], []
        other.heard_at = now()
        number, other.next = other.next, other.next + 1
        if sent:
            other.owed += 1
            other.wake.set()
        for message in sent:
            if message not in large:
                self._take(other, message, arrays)
        if large:
            other.open.add(number)
            self._background.spawn(self._take_large(other, number, large))
        return True

    async def _numbers_of(self, other: _Region, incarnation: int) -> list[int]:
        names = await self._insist(self._store.names, _folder(self.me, other.name, incarnation))
        return sorted(int(name.rpartition("/")[2]) for name in names)

    async def _follow(self, other: _Region) -> None:
        """Go on with a later incarnation once one has ended, which answers no call of ours to the one before.

        Who reads for the first time begins with the oldest batch of the newest: what those before it said is past.
        """
        written = sorted(map(int, await self._insist(self._store.folders, f"{FOLDER}/{self.me}/{other.name}")))
        newest = other.incarnation or await self._newest(f"incarnations/{other.name}")
        for incarnation in written:
            if incarnation < newest:
                await self._clear(other, incarnation)
                continue
            if not (numbers := await self._numbers_of(other, incarnation)):
                continue
            if incarnation == other.incarnation:
                ahead = [number for number in numbers if number >= other.next]
                if ahead and ahead[-1] >= other.next + AT_ONCE:
                    other.next = ahead[0]  # what is not there was removed: an incarnation of ours before had it
                if other.next in ahead:
                    return
                continue
            if other.incarnation:
                await self._clear(other, other.incarnation)
            other.incarnation, other.next, other.open = incarnation, numbers[0], set()
            self._give_up(other, list(other.pending), "another gateway answers for it")
            return

    async def _clear(self, other: _Region, incarnation: int) -> None:
        """Remove what an incarnation has left that nobody reads any more."""
        for folder in (_folder(self.me, other.name, incarnation), _large(self.me, other.name, incarnation)):
            for name in await self._insist(self._store.names, folder):
                await self._removed(name)

    async def _take_large(self, other: _Region, number: int, messages: Sequence[dict[str, Any]]) -> None:
        incarnation = other.incarnation
        await asyncio.gather(*(self._take_arrays(other, incarnation, message) for message in messages))
        if incarnation == other.incarnation:
            other.open.discard(number)

    async def _take_arrays(self, other: _Region, incarnation: int, message: dict[str, Any]) -> None:
        name, size, arrays = message["large"], message.get("size"), None
        about = (0.0, size) if isinstance(self._store, Door) and isinstance(size, int) else ()
        with contextlib.suppress(FileNotFoundError, Damaged):
            if str(name).startswith(_large(self.me, other.name, incarnation)):
                given = await self._insist(self._store.read, name, *about, threads=self._large_threads)
                _, arrays, _ = await self._in_thread(unpack, given, threads=self._large_threads)
        self._take(other, message | {"arrays": [0, len(arrays or [])]}, arrays or [])

    def _take(self, other: _Region, message: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        """Carry out a call, or give its answer to the one that waits for it."""
        if "lost" in message:
            asked = [each for each, batch in other.sent_in.items() if message["lost"] == [self.incarnation, batch]]
            self._give_up(other, asked, "a batch for it was damaged")
            return
        answered, number = message.get("re"), message.get("id")
        about = None if number is None else {"re": [other.incarnation, number]}
        try:
            first, many = message["arrays"]
            value = unpacked(message["value"], arrays[first : first + many], self._peer_of)
            if answered is not None:
                incarnation, mine = answered
                answer = other.pending.get(mine) if incarnation == self.incarnation else None
                if answer is not None and not answer.done():
                    _settle(answer, value)
                return
            to, method = message["to"], message["method"]
        except Exception as error:  # of `peer_of`, too: Ray may not answer now
            self._failed(error)
            if isinstance(answered, list):
                self._give_up(other, [each for each in answered if isinstance(each, int)], "its answer cannot be read")
            elif about is not None:
                outcome = Raised if isinstance(error, LookupError | TypeError | ValueError) else Unreachable
                self._send(other, about, (outcome.__name__, ("it cannot be read", *_told(error))))
            return
        self._background.spawn(self._carry_out(other, to, method, value, about))

    async def _carry_out(
        self, other: _Region, name: str, method: str, arguments: list[Any], about: dict[str, Any] | None
    ) -> None:
        try:
            answer = ("ok", await self._serve(other.name, name, method, arguments))
            if about is not None:
                self._send(other, dict(about), answer)
            return
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


def _large(to: str, source: str, incarnation: int) -> str:
    return f"{_folder(to, source, incarnation)}/large"


def _batch(to: str, source: str, incarnation: int, number: int) -> str:
    return f"{_folder(to, source, incarnation)}/{number:09d}"


def _grant(store: Objects, me: str) -> tuple[int, list[str]]:
    """The next incarnation of a region's mail, and the grants before it, oldest first."""
    folder = f"{FOLDER}/incarnations/{me}"
    before = store.names(folder)
    number = max((int(name.rpartition("/")[2]) for name in before), default=0)
    while True:
        number += 1
        with contextlib.suppress(FileExistsError):
            store.create(f"{folder}/{number:06d}", [b""])
            return number, before
