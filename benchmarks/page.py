"""What the live page of a large run costs: time to be told everything, and the share of a core while the run goes on.

    python benchmarks/page.py RUN [--learners 64 --rows 1000000 --seconds 60] [--serve]

Makes a run's folder with so many learners and rows of log, beside the status of RUN, which has ended; then lets it go
on: the status is written twice a second, and the log grows by a segment a second. With --serve it says the
page's address and waits, for a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness.whole_log import WholeLog
from learners.protocol.facts import Adopted, PhaseEntered, StepFinished
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import FaultInjected, LearnerLost, LearnerRequested, LearnerStarted, RunStarted
from orchestrator.store.readers import located
from orchestrator.store.run_store import RunStore
from outer.journal.chain import SEGMENT_ROWS
from outer.journal.groups import SYNCER
from outer.journal.object_store import Folder
from outer.protocol.facts import Committed, LearnerAttached, Participant, SyncerStarted

STEP_S, FRAGMENTS, ROUND = 0.5, 12, 12  # a commit takes place at each of the steps of a round
DIES_EVERY_S = 60.0  # one learner


class History:
    """A run as it might have been, its facts in the log's order, without an end."""

    def __init__(self, learners: int, begun: float) -> None:
        self.at = begun
        self._names = [f"learner-local-{number}" for number in range(learners)]
        self._incarnation, self._numbers = dict.fromkeys(self._names, 1), dict[tuple[str, int], Any]()
        self._random, self._step, self._tokens = random.Random(0), 0, 0

    def told(self, writer: str, fact: Any, incarnation: int = 1, late_s: float = 0.0) -> Event:
        number = next(self._numbers.setdefault((writer, incarnation), count()))
        return Event(writer, incarnation, number, self.at + late_s, fact)

    def begin(self) -> Iterator[Event]:
        names, none = tuple(self._names), (0,) * FRAGMENTS
        yield self.told("orchestrator", RunStarted("page", "", 0, {}))
        settings = (1, tuple((f"t{each}",) for each in range(FRAGMENTS)), (1000,) * FRAGMENTS, names, len(names) // 2)
        rest = (ROUND, 1, none, 0, 10.0, 20.0, 5.0, "journal", 1, "tokens", "fp32")
        yield self.told(SYNCER, SyncerStarted(*settings, *rest))
        for name in names:
            yield from self._up(name)

    def _up(self, name: str) -> Iterator[Event]:
        incarnation = self._incarnation[name]
        yield self.told("orchestrator", LearnerRequested(name, incarnation, "local", None))
        yield self.told("orchestrator", LearnerStarted(name, incarnation, 1, "node"))
        yield self.told(SYNCER, LearnerAttached(name, incarnation, self._step))
        for late, phase in enumerate(("starting", "importing", "compiling", "joining", "stepping")):
            yield self.told(name, PhaseEntered(phase), incarnation, 0.01 * late)

    def step(self) -> Iterator[Event]:
        """A step of every learner, and a commit."""
        self._step, self.at = self._step + 1, self.at + STEP_S
        fragment, weight = self._step % FRAGMENTS, 1 / len(self._names)
        for name in self._names:
            loss = 4.0 / (1.0 + self._step) ** 0.2 + self._random.gauss(0.0, 0.05)
            done = StepFinished(self._step, 512, 0, self._step, loss, STEP_S, 0.0, "")
            yield self.told(name, done, self._incarnation[name])
            if self._step % 4 == 0:
                yield self.told(name, Adopted(fragment, self._step, self._step, "overwrite"), self._incarnation[name])
        self._tokens += 512 * len(self._names)
        mine = [
            Participant(name, self._incarnation[name], self._step, self._step - 1, 1, 512, weight, "")
            for name in self._names[::4]
        ]
        live, base = len(self._names), max(0, self._step - ROUND)
        times = (0.3, 0.1, 0.01, "the grace window is over")
        yield self.told(
            SYNCER, Committed(self._step, fragment, 1, base, tuple(mine), live, "", 0.1, self._tokens, *times)
        )
        if self._step % round(DIES_EVERY_S / STEP_S) == 0:
            name = self._random.choice(self._names)
            yield self.told("chaos", FaultInjected(self._step, "kill", name, self._incarnation[name], 1, 0.0))
            yield self.told("orchestrator", LearnerLost(name, self._incarnation[name], "died", ""))
            self._incarnation[name] += 1
            yield from self._up(name)


def status_of(status: dict[str, Any], learners: int) -> dict[str, Any]:
    row = status["learners"][0] | {"state": "stepping", "region": "eu"}
    rows = [row | {"name": f"learner-local-{number}"} for number in range(learners)]
    return status | {"learners": rows, "written_at": time.time(), "run": status["run"] | {"state": "running"}}


async def watched(address: str, going_on: Any, watcher: psutil.Process, seconds: float) -> dict[str, float]:
    """What the process that serves the page took, while somebody looks."""
    begun, found = time.monotonic(), dict[str, float]()
    taken = megabytes = 0.0
    async with aiohttp.ClientSession() as session, session.get(f"{address}events", timeout=None) as response:
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            told = json.loads(line[6:])["states"]
            found.setdefault("first_s", time.monotonic() - begun)
            if "whole_s" not in found and any(each["topic"] == "reading" and each["value"]["whole"] for each in told):
                found["whole_s"] = time.monotonic() - begun
            if "whole_s" in found and "stories" in {each["topic"] for each in told} and "told_s" not in found:
                found["told_s"] = time.monotonic() - begun
                since, taken, megabytes = time.monotonic(), sum(watcher.cpu_times()[:2]), memory(watcher)
                growing = asyncio.create_task(going_on())
            if "told_s" in found and (now := time.monotonic() - since) > seconds:
                growing.cancel()
                found["core"] = (sum(watcher.cpu_times()[:2]) - taken) / now
                return found | {"MB_before": megabytes, "MB_after": memory(watcher)}
    raise RuntimeError("the page's process has ended")


def memory(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "page"
        store, log = RunStore(folder), WholeLog(Folder(folder))
        status = located(options.run).read_json("status.json")
        store.write_json("status.json", status_of(status, options.learners))
        history = History(options.learners, time.time() - options.rows * STEP_S / (1.5 * options.learners))
        waiting = list(history.begin())
        while log.rows < options.rows:
            while len(waiting) < SEGMENT_ROWS:
                waiting += history.step()
            log.append(waiting)
            waiting = []
        history.at = time.time()

        async def going_on() -> None:
            while True:
                for _ in range(2):
                    store.write_json("status.json", status_of(status, options.learners))
                    waiting.extend(history.step())
                    await asyncio.sleep(STEP_S)
                log.append(waiting)
                waiting.clear()

        command = [sys.executable, "-m", "orchestrator", "watch", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            try:
                assert watching.stdout is not None
                address = watching.stdout.readline().strip()
                if options.serve:
                    print(f"{address} {log.rows} rows", flush=True)
                    await going_on()
                found = await watched(address, going_on, psutil.Process(watching.pid), options.seconds)
                print(json.dumps({"rows": log.rows} | {name: round(each, 3) for name, each in found.items()}))
            finally:
                watching.terminate()


if __name__ == "__main__":
    asyncio.run(main())
