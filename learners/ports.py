"""What a learner's shell needs beside the ports of outer: the devices, and how the training loop waits for them.

In production the training loop has a thread of its own, which `ThreadPace` blocks. In virtual time it is a task.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, Protocol, TypeVar

from learners.protocol.events_effects import Apply
from learners.protocol.facts import DeviceTaken
from outer.background import end_process, thread
from outer.numeric.chain import VersionChain
from outer.protocol.fragments import Fragment
from outer.protocol.messages import Contribution, State, StateRequest

T = TypeVar("T")


class DeviceSteps(Protocol):
    """Runs steps, for the training loop: see Trainer."""

    @property
    def fragments(self) -> Sequence[Fragment]: ...
    def load(self, index: int, flat: Any) -> None: ...
    def ready(self, start: int, count: int, wait_s: float) -> bool: ...
    def dispatch(self, start: int, count: int, progress: float) -> Pending: ...
    def expect(self, starts: Sequence[int], count: int) -> None: ...


class Pending(Protocol):
    """A step in flight: see InFlight."""

    def result(self) -> tuple[float, dict[str, float]]: ...


class DeviceValues(Protocol):
    """A learner's fragments and state: see FragmentIO. Threads call `encode`, `pack`, `receive` and `state_defect`."""

    def stage(self, fragments: Iterable[int]) -> Mapping[int, Any]: ...
    def encode(self, contribution: Contribution) -> Contribution: ...
    def apply(self, effect: Apply) -> None: ...
    def receive(self, fragment: int, theta: Any) -> Any: ...
    def snapshot(self) -> Any: ...
    def restore(self, header: Mapping[str, Any], arrays: Sequence[Any]) -> None: ...
    def capture(self) -> Any: ...
    def pack(self, held: Any, asked: StateRequest, step: int, syncer_step: int, versions: tuple[int, ...]) -> State: ...
    def state_defect(self, state: State) -> str: ...
    def inherit(self, state: State) -> None: ...
    def bytes_of(self, fragment: int) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    def bases(self) -> Sequence[tuple[int, Any]]: ...


class Device(Protocol):
    """The devices of a learner, with its model on them: see Preparation. The properties exist from `load` on."""

    @property
    def trainer(self) -> DeviceSteps: ...
    @property
    def fragment_io(self) -> DeviceValues: ...
    @property
    def fragments(self) -> tuple[Fragment, ...]: ...
    @property
    def chain(self) -> VersionChain | None: ...
    @property
    def tokens_per_step(self) -> int: ...
    @property
    def manifest(self) -> dict[str, Any]: ...
    @property
    def device(self) -> DeviceTaken: ...
    def ahead(self) -> None: ...
    def load(self) -> None: ...
    def compile(self) -> None: ...
    def end(self) -> None: ...


class Pace(Protocol):
    """Where the training loop runs and how it waits. `now` and `wake` may be called from any thread."""

    @property
    def thread(self) -> Executor | None:
        """The training loop's thread, in which the model is made, too."""
        ...

    def now(self) -> float:
        """Monotonic seconds, of the machine and its facts."""
        ...

    def wake(self) -> None:
        """End the loop's `wait`, or the next one."""
        ...

    async def run(self, loop: Coroutine[Any, Any, T]) -> T:
        """Run the training loop to its end. The event loop calls this; the training loop calls what follows."""
        ...

    async def sleep(self, seconds: float) -> None: ...
    async def wait(self, seconds: float) -> None:
        """Until woken, or the time is over."""
        ...

    async def result(self, pending: Pending) -> tuple[float, dict[str, float]]:
        """A step's loss and auxiliary values; waits for the devices. Raises what the step raised."""
        ...

    async def ready(self, steps: DeviceSteps, start: int, count: int, seconds: float) -> bool:
        """Wait so long for a step's batch. Returns whether it is there."""
        ...


class ThreadPace:
    """Blocks the thread of the training loop, whose coroutine never suspends."""

    def __init__(self) -> None:
        self.thread = LoopThread()
        self.now = time.monotonic
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, loop: Coroutine[Any, Any, T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, run_through, loop)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()  # before the loop looks, so that news after it wakes the next wait at once

    async def result(self, pending: Pending) -> tuple[float, dict[str, float]]:
        return pending.result()

    async def ready(self, steps: DeviceSteps, start: int, count: int, seconds: float) -> bool:
        return steps.ready(start, count, seconds)


def run_through(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends. Raises RuntimeError if it does."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise RuntimeError("the training loop waited for something else than its pace")


class LoopThread(Executor):
    """One daemon thread, which does not keep its process from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        thread("loop", self._serve, end_process)

    def submit(self, work: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, partial(work, *given, **named)))
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except (StopIteration, CancelledError) as error:  # no asyncio future can have these
                    raised = RuntimeError(f"{type(error).__name__}: {error}")
                    raised.__cause__ = error
                    future.set_exception(raised)
                except BaseException as error:  # whatever a task raises
                    future.set_exception(error)
            del future, work  # else it would keep them until the next comes
