"""Simulated hosts and the processes on them: alive or dead, running or frozen, each with its host's clocks.

A process has an asyncio loop of its own, whose clock is its host's and whose timers are callbacks of the timeline: what
runs in it is production code. Dead, none of its callbacks runs any more; frozen, they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappush
from typing import TYPE_CHECKING, Any

from orchestrator.simulation.timeline import Timeline

if TYPE_CHECKING:
    LoopBase = Any  # its methods are typed for what shells never pass
else:
    LoopBase = asyncio.AbstractEventLoop

SPIN = 100_000  # callbacks of one process in one instant: a loop that never waits


class Died(BaseException):
    """The process ends in the midst of a callback: what follows is never done."""


class Host:
    """A machine's clocks. The monotonic one never falls; the wall clock dates facts and may jump either way."""

    __slots__ = ("data_at", "jumped", "name", "offset_s", "rate", "slowdown", "wall_s")

    def __init__(self, name: str, rate: float = 1.0, offset_s: float = 0.0, wall_s: float = 0.0) -> None:
        self.name = name
        self.rate, self.offset_s = rate, offset_s  # monotonic seconds = offset + rate * virtual seconds
        self.wall_s = wall_s  # the wall clock's lead over virtual time
        self.jumped = False  # the wall clock jumped, and no fact was dated since
        self.slowdown = 1.0  # factor on every step
        self.data_at = 0.0  # virtual seconds; until then no batch is there

    def set_rate(self, now: float, rate: float) -> None:
        """Change the clock's rate from this virtual second on. The clock does not jump."""
        self.offset_s += (self.rate - rate) * now
        self.rate = rate


class Process:
    """One process on a host. While frozen it queues what arrives, and handles it when it thaws."""

    shell: Any  # whose methods its peers call

    def __init__(self, time: Timeline, host: Host, key: tuple[str, int]) -> None:
        self.time, self.host, self.key = time, host, key
        self.label = f"{key[0]} {key[1]}"
        self.alive = True
        self.running = True  # alive, and not frozen
        self.thawed_at = 0.0  # virtual seconds
        self.handled = 0  # events handed to its machine
        self.turns = 0  # callbacks that it has run
        self.dies_at = math.inf  # it dies instead of running so many
        self.loop = ProcessLoop(self)
        self.raised: Callable[[Process, BaseException], object] = lambda process, error: None  # told of stray errors
        self.jobs = ThreadJobs(self)
        time.processes.append(self)
        self._queued: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._mourners: dict[Callable[[], None], None] = {}  # in their order

    def notice_s(self, target: Process) -> float:
        """Seconds until it hears that a process is dead which it has asked."""
        return 0.0

    def clock(self) -> float:
        """This host's monotonic clock, in seconds."""
        return self.host.offset_s + self.host.rate * self.time.now

    def wall(self) -> float:
        """This host's wall clock, in seconds."""
        return self.time.now + self.host.wall_s

    def deliver(self, happen: Callable[..., Any], *args: Any) -> None:
        """Run the callback now, queue it if the process is frozen, or drop it if the process is dead."""
        if self.running:
            self.run(happen, args)
        elif self.alive:
            self._queued.append((happen, args))

    def run(self, happen: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Run a callback, in the process's loop, and everything in it that is due then."""
        time, loop = self.time, self.loop
        if time.inside is not None:  # another process, or this one, is in the midst of a callback
            time.reach(0.0, self, happen, *args)
            return
        time.inside, ready, before = self, loop.ready, self.turns
        events._set_running_loop(loop)
        try:
            self.turns += 1
            if self.turns >= self.dies_at:
                self.end()
            happen(*args)
            while ready and self.running:
                happen, args = ready.popleft()
                self.turns += 1
                if self.turns >= self.dies_at:
                    self.end()
                assert self.turns - before < SPIN, f"{self.label} spins"
                try:
                    happen(*args)
                except Exception as error:
                    self.raised(self, error)
        except Died:
            assert not self.alive
        finally:
            time.inside = None
            events._set_running_loop(None)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task; call it in the process's loop. `raised` is told of what ends it."""
        task = self.task(work)
        task.add_done_callback(self._done)
        return task

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task whose end somebody else hears of."""
        task: asyncio.Task[Any] = self.loop.create_task(work)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.raised(self, error)

    def freeze(self) -> None:
        self.running = False

    def thaw(self) -> int:
        """Resume a frozen process and handle what it queued. Returns how many callbacks that were."""
        if not self.alive or self.running:
            return 0
        self.running, self.thawed_at = True, self.time.now
        queued, self._queued = self._queued, []
        for happen, args in queued:
            self.deliver(happen, *args)  # one of them may end the process
        if self.loop.ready and self.running:
            self.run(int, ())
        return len(queued)

    def mourn(self, died: Callable[[], None]) -> None:
        """Have this called when the process dies; at once if it is dead."""
        if self.alive:
            self._mourners[died] = None
        else:
            died()

    def forget(self, died: Callable[[], None]) -> None:
        """Take back what `mourn` said."""
        if self.alive:
            del self._mourners[died]

    def die(self) -> None:
        """It is dead from now on; a callback under way runs on until it ends or awaits."""
        if not self.alive:
            return
        self.alive = self.running = False
        self._queued = []
        self.loop.stop()
        mourners, self._mourners = self._mourners, {}
        for died in mourners:
            died()

    def end(self) -> None:
        """The process ends in the midst of a callback. Never returns."""
        self.die()
        raise Died


class Timer:
    """A callback at a time. One that is cancelled stays in the timeline until then."""

    __slots__ = ("_args", "_callback", "_process")

    def __init__(self, process: Process, callback: Any, args: tuple[Any, ...]) -> None:
        self._process, self._callback, self._args = process, callback, args

    def fire(self) -> None:
        if self._callback is not None:
            try:
                self._callback(*self._args)
            except Exception as error:
                self._process.raised(self._process, error)

    def cancel(self) -> None:
        self._callback = None


class ProcessLoop(LoopBase):  # type: ignore[misc]
    """The part of an asyncio loop that shells use. Tasks of a dead process are kept, so that none of them unwinds.

    Callbacks are many, so they are plain: none enters a context, and none that is called soon can be called off."""

    get_debug = staticmethod(bool)  # never: each new future asks

    def __init__(self, process: Process) -> None:
        self.process, self.time = process, process.clock
        self.ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._tasks: list[asyncio.Task[Any]] = []

    def stop(self) -> None:
        """Its process is dead: nothing in it runs any more."""
        self.ready.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that nobody awaited what a coroutine was to await
            for task in self._tasks:
                if inspect.getcoroutinestate(work := task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
                    work.close()

    def close(self) -> None:
        """The world is over: unwind what is left, so that no collection of garbage does."""
        self.process.die()
        self.process.raised = lambda process, error: None
        events._set_running_loop(self)
        for task in self._tasks:
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        events._set_running_loop(None)

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.process.alive

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        if not self.process.alive:
            coro.close()
            return asyncio.Future(loop=self)  # type: ignore[return-value]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "")
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)
        if len(self._tasks) > 256:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> None:
        process = self.process
        if process.alive:
            if not self.ready and process.time.inside is not process:
                process.time.reach(0.0, process, int)  # Process.run works off what is ready
            self.ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Timer:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Timer:
        process = self.process
        timer, time = Timer(process, callback, args), process.time
        seconds = max(0.0, (when - process.clock()) / process.host.rate)
        heappush(time.queue, (time.now + seconds, time.number(), process, timer.fire, ()))
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        return self.process.jobs.submit(executor, func, args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        if not isinstance(error, Died):
            self.process.raised(self.process, error)


class ThreadJobs:
    """What a process does in threads beside its loop. A job takes time before and after the moment at which it happens.

    The world says how long (`takes`), and what becomes of a job whose process stops meanwhile (`outlives`).
    """

    def __init__(self, process: Process) -> None:
        self.takes: Callable[[str, Callable[..., Any], tuple[Any, ...]], tuple[float, float]] = lambda *job: (0.0, 0.0)
        self.outlives: Callable[[str], bool] = lambda kind: False
        self._process = process
        self._free_at: dict[str, list[float]] = {}  # by executor: when each of its threads is free

    def submit(self, executor: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
        process, time = self._process, self._process.time
        kind = "" if executor is None else executor._thread_name_prefix
        threads = self._free_at.setdefault(kind, [0.0] * (8 if executor is None else executor._max_workers))
        before_s, after_s = self.takes(kind, func, args)
        free_at = min(threads)
        happens_at = max(time.now, free_at) + before_s
        threads[threads.index(free_at)] = happens_at + after_s
        done = process.loop.create_future()
        time.reach(happens_at - time.now, None, self._happen, kind, func, args, after_s, done)
        return done

    def _happen(
        self, kind: str, func: Callable[..., Any], args: tuple[Any, ...], after_s: float, done: asyncio.Future[Any]
    ) -> None:
        process = self._process
        if not process.running and not self.outlives(kind):
            process.deliver(self._do, func, args, after_s, done)
        else:
            self._do(func, args, after_s, done)

    def _do(self, func: Callable[..., Any], args: tuple[Any, ...], after_s: float, done: asyncio.Future[Any]) -> None:
        time, inside = self._process.time, self._process.time.inside
        time.inside = None
        events._set_running_loop(None)  # a thread has none
        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised
        finally:
            time.inside = inside
            events._set_running_loop(None if inside is None else inside.loop)
        time.reach(after_s, self._process, self._settle, done, result, error)

    @staticmethod
    def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
