"""Repeats learners in several processes at the same time, each with its share of them and cores of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.replay.crew import Failure, FromLearners, News, ToLearners
from orchestrator.replay.environment import Environment, taken_for
from orchestrator.replay.incarnation import IncarnationTape, Key, Read, Step, TapeError
from orchestrator.replay.tape import Tape, merged_reads
from outer import heap

SILENT_S = 900.0  # without a word for so long, the processes are given up: no step or compilation takes longer
LOOK_S = 1.0  # without a word: between two looks whether a process has ended
LEAST_STEPS = 400  # for each process: what is less takes no longer than starting it


@dataclass(frozen=True)
class Share:
    """The part that one process repeats, and its cores."""

    incarnations: Mapping[Key, IncarnationTape]
    merged: dict[tuple[Key, Read], str]
    recipe: Recipe
    cores: tuple[int, ...]
    devices: int = 0  # for which a CPU is to be taken; 0: as the environment says
    platform: str = ""  # where the log does not say what the learners computed on: what their pools ask for


def shares(tape: Tape, recipe: Recipe, environment: Environment | None, cores: list[int]) -> list[Share]:
    """How these cores may repeat a tape's learners at the same time, each with as many as in the run.

    One share: not at all. Accelerators are not shared between processes. On CPUs, learners with one core, with several
    and with several devices are in processes of their own: XLA computes other bits with another number of threads.
    """
    steps: Counter[str] = Counter()
    for (learner, _), incarnation in tape.incarnations.items():
        steps[learner] += sum(isinstance(moment, Step) for moment in incarnation.moments)
    reads = merged_reads(tape)

    def share(names: Collection[str], of_cores: Sequence[int], devices: int = 0) -> Share:
        return Share(
            {key: incarnation for key, incarnation in tape.incarnations.items() if key[0] in names},
            {read: codec for read, codec in reads.items() if read[0][0] in names},
            recipe,
            tuple(of_cores),
            devices,
            recipe.pools[0].platform if environment is None else "",
        )

    if environment is not None and environment.platform == "cpu" and len(kinds := _kinds(tape)) > 1:
        return [
            share(names, cores[:1] if alone else cores, devices) for (devices, alone), names in sorted(kinds.items())
        ]
    each = 0
    if environment is not None and environment.platform == "cpu":
        each = environment.cores
        each = max([each, *(device.devices for device in tape.devices.values())])
    count = min(len(cores) // each if each else 1, steps.total() // LEAST_STEPS)
    work = {name: number * recipe.pool_of(name).batch_size for name, number in steps.items()}
    groups = dealt(work, max(1, count))
    return [
        share(names, cores[number * each : (number + 1) * each] if each else cores)
        for number, names in enumerate(groups)
    ]


def _kinds(tape: Tape) -> dict[tuple[int, bool], set[str]]:
    """Learners by how many devices they computed on, and whether on one core."""
    found: dict[tuple[int, bool], set[str]] = {}
    of = {learner: device for (learner, _), device in tape.devices.items()}
    for learner in {learner for learner, _ in tape.incarnations}:
        kind = (of[learner].devices, of[learner].cores == 1) if learner in of else (1, False)
        found.setdefault(kind, set()).add(learner)
    return found


def dealt(work: Mapping[str, int], count: int) -> list[list[str]]:
    """Deal learners into at most `count` groups of about equal work: the largest first, to whom has least."""
    groups: Sequence[tuple[list[str], list[int]]] = [([], []) for _ in range(count)]
    for learner in sorted(work, key=lambda name: (-work[name], name)):
        names, steps = min(groups, key=lambda group: sum(group[1]))
        names.append(learner)
        steps.append(work[learner])
    return [names for names, _ in groups if names]


class Workers:
    """A process for each share. Messages to one are performed in order. Close them."""

    def __init__(self, shares: Sequence[Share], variables: Mapping[str, str]) -> None:
        """`variables`: the environment of the processes."""
        self.groups = {learner: group for group, share in enumerate(shares) for learner, _ in share.incarnations}
        context = multiprocessing.get_context("spawn")
        self._heard: Any = context.Queue()
        self._outgoing: list[Any] = [context.Queue() for _ in shares]
        self._finished: set[int] = set()
        self.processes = []
        inherited = dict(os.environ)
        try:
            for group, share in enumerate(shares):
                os.environ.clear()
                os.environ.update(variables)
                if share.devices:
                    os.environ["XLA_FLAGS"] = taken_for(share.devices, variables)
                arguments = group, share, self._outgoing[group], self._heard
                self.processes.append(context.Process(target=_main, args=arguments, daemon=True))
                self.processes[-1].start()
        finally:
            os.environ.clear()
            os.environ.update(inherited)

    def tell(self, group: int, message: ToLearners) -> None:
        self._outgoing[group].put(message)

    def hear(self) -> FromLearners:
        """The next message. Raises TapeError, InputError, and RuntimeError for one that ended or fell silent."""
        group, message = self._next()
        if isinstance(message, Failure):
            if message.problems:
                raise InputError([Problem(**problem) for problem in message.problems])
            raise TapeError(message.tape)
        if isinstance(message, News) and message.device is not None:
            self._finished.add(group)
        return message

    def _next(self) -> tuple[int, FromLearners | Failure]:
        give_up_at = time.monotonic() + SILENT_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(queue.Empty):
                found: tuple[int, FromLearners | Failure] = self._heard.get(timeout=LOOK_S)
                return found
            for group, process in enumerate(self.processes):
                if process.exitcode is not None and group not in self._finished:
                    names = ", ".join(learner for learner, number in self.groups.items() if number == group)
                    raise RuntimeError(f"the process that replays {names} has ended with code {process.exitcode}")
        raise RuntimeError(f"the processes that replay have said nothing for {SILENT_S:.0f} s")

    def close(self) -> None:
        """End the processes."""
        for process, outgoing in zip(self.processes, self._outgoing, strict=True):
            process.kill()
            outgoing.cancel_join_thread()
        for process in self.processes:
            process.join()


# ------------------------------------------------------------------ inside


def _main(group: int, share: Share, source: Any, sink: Any) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever the task prints
    heap.keep_large()
    os.sched_setaffinity(0, share.cores)

    def emit(message: FromLearners | Failure) -> None:
        sink.put((group, message))

    try:
        _repeat(share, source, emit)
    except InputError as error:
        emit(Failure(problems=tuple(asdict(problem) for problem in error.problems)))
    except TapeError as error:
        emit(Failure(tape=str(error)))


def _repeat(share: Share, source: Any, emit: Callable[[FromLearners], None]) -> None:
    from learners.training.devices.device import fit, use_compile_cache
    from orchestrator.recipe.tasks import build_task

    if share.platform:
        fit(None, share.platform)
    from orchestrator.replay.learners import Learners  # JAX starts here

    use_compile_cache()
    task = build_task(share.recipe)
    learners = Learners(share.incarnations, share.merged, share.recipe, task, emit)
    running: Generator[None, ToLearners, None] = learners.run()
    next(running)
    with contextlib.suppress(StopIteration):
        while True:
            running.send(source.get())
