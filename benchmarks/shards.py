"""What shards bring: bytes merged a second, answers of control while bytes move, and what the death of one costs.

    python benchmarks/shards.py [--size-mb 32] [--learners 4] [--rounds 10] [--parameters 5e7] [--json]

`merge`: actors that answer reads at once, and 1 and 2 shards of one core each; two fragments are read and merged at a
time. GB of payloads (bf16) that are merged in a second, with their reading. `run`: a whole run of benchmarks/large.py's
model, with 1 and 2 shards. A probe asks the syncer for its clock, a call like a report, every 20 ms: its answers in
milliseconds, median and 99 %, over the time in which values move. With two shards one is killed in the middle of a
merge: `recovery_s` from its death to the next commit, `lost` commits that are newer than what a later epoch started
with, and the checks that failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from benchmarks.large import recipe as large  # noqa: E402
from chaos.actor import start  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.config import SYNCER, Recipe  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.runtime import launch  # noqa: E402
from orchestrator.runtime.placement import syncer_name  # noqa: E402
from orchestrator.runtime.specs import syncer_spec  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer import bulk as control_side  # noqa: E402
from outer.config import SyncConfig  # noqa: E402
from outer.first_values import FirstValues  # noqa: E402
from outer.journal.object_store import Folder  # noqa: E402
from outer.kill_points import MERGING  # noqa: E402
from outer.numeric import codec as codecs  # noqa: E402
from outer.protocol.events_effects import Merge  # noqa: E402
from outer.protocol.facts import Committed, SyncerStarted  # noqa: E402
from outer.protocol.fragments import Fragment, Tensor  # noqa: E402
from outer.protocol.manifest import code_digest  # noqa: E402
from outer.protocol.messages import Contribution, FragmentCounters, ReadRequest  # noqa: E402
from outer.shard import Answer, ShardActor  # noqa: E402

MB = 2**20
FRAGMENTS, AT_A_TIME = 4, 2
PROBE_S, CALL_S = 0.02, 60.0


class Pinned(ShardActor):
    """A shard with a core of its own."""

    def __init__(self, spec: Any, make: Any, shard: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[shard % len(cores)]})
        super().__init__(spec, make, shard)


class Giver:
    """A learner that has its answer ready."""

    def __init__(self, name: str, elements: int, codec: str) -> None:
        self._name, base = name, np.zeros(elements, np.float32)
        theta = np.random.default_rng(len(name)).standard_normal(elements, np.float32)
        self._payload = codecs.encode(codec, theta, base)
        self._digest = codecs.digest(self._payload)

    def read(self, request: ReadRequest) -> tuple[Contribution, list[Any], int]:
        counters = FragmentCounters(0, 0, 1, 8)
        place = request.fragment, request.attempt, 1, 8
        said = Contribution(self._name, 1, 1, request.syncer_step, *place, counters, self._payload, self._digest)
        return said, [], 0


def merged_gb_s(count: int, size_mb: int, learners: int, rounds: int) -> dict[str, Any]:
    """Reads and merges by `count` shards."""
    elements = size_mb * MB // 4
    fragments = tuple(Fragment(n, (Tensor(f"w{n}", (elements,), "float32"),)) for n in range(FRAGMENTS))

    def make(wanted: Callable[[int], bool]) -> FirstValues:
        thetas = [np.zeros(elements, np.float32) if wanted(each.index) else None for each in fragments]
        return fragments, thetas, {}, {}

    sync = SyncConfig(P=FRAGMENTS, H=FRAGMENTS, codec="bf16")
    control_side.ShardActor = Pinned  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        wanted = large(10**6, learners, 1, "bf16", "fp32", 1.0)
        store = RunStore(Path(folder))
        store.create()
        with launch.local_cluster(wanted, store):
            spec = syncer_spec(wanted, code_digest(), Folder(Path(folder)))
            spec = replace(spec, epoch=1, sync=sync, shards=count, shard_lease_s=CALL_S)
            names = [f"learner-{number}" for number in range(learners)]
            actor = ray.remote(Giver).options(num_cpus=0)
            givers = {name: actor.remote(name, elements, sync.codec) for name in names}
            shards = control_side.Bulk(spec, make, lambda: None)
            shards.begin([0] * FRAGMENTS, lacking=True)
            return asyncio.run(_merge_all(shards, givers, rounds))


async def _merge_all(shards: Any, givers: dict[str, Any], rounds: int) -> dict[str, Any]:
    weights, free = [1.0 / len(givers)] * len(givers), asyncio.Semaphore(AT_A_TIME)
    moved = 0

    async def one(step: int) -> None:
        nonlocal moved
        fragment = step % FRAGMENTS
        async with free:
            request = ReadRequest(1, 1, step, fragment, 1, 0.0, CALL_S)
            answers = await asyncio.gather(*(shards.read(name, giver, request) for name, giver in givers.items()))
            assert all(isinstance(each, Answer) and not each.contribution.defect for each in answers), answers
            tokens = [each.contribution.payload for each in answers]
            await shards.merge(Merge(step, fragment, tuple(tokens), tuple(weights)))
            shards.install(fragment, step)
            moved += len(answers)

    await asyncio.gather(*(one(step) for step in range(1, FRAGMENTS + 1)))  # everything is compiled and in the caches
    moved, begun = 0, time.monotonic()
    await asyncio.gather(*(one(step) for step in range(FRAGMENTS + 1, FRAGMENTS * (rounds + 1) + 1)))
    return {"merges": moved // len(givers), "seconds": time.monotonic() - begun, "payloads": moved}


class Probe:
    """Asks the newest epoch for its clock, in a thread of its own."""

    def __init__(self) -> None:
        self.epoch = 0
        self.answers_ms: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def on_status(self, status: dict[str, Any]) -> None:
        if status["run"]["syncer_step"] > 0 and status["run"]["state"] == "running":
            self.epoch = status["syncer"]["epoch"]
            if not self._thread.is_alive() and not self._over.is_set():
                self._thread.start()
        elif self.answers_ms:
            self._over.set()

    def _run(self) -> None:
        known, handle = 0, None
        while not self._over.wait(PROBE_S):
            try:
                if known != self.epoch:
                    known, handle = self.epoch, ray.get_actor(syncer_name(self.epoch))
                begun = time.monotonic()
                ray.get(handle.clock.remote(), timeout=CALL_S)
                self.answers_ms.append(1e3 * (time.monotonic() - begun))
            except (ValueError, ray.exceptions.RayError):
                continue  # between two epochs


def whole_run(count: int, parameters: int, kill: bool, folder: Path) -> dict[str, Any]:
    """A run with `count` shards."""
    made = large(parameters, 2, 3, "bf16", "fp32", 3.0).model_dump(by_alias=True, exclude_defaults=True)
    faults = [{"kind": "kill", "learner": SYNCER, "point": MERGING, "at_step": 2 * made["budget"]["syncer_steps"] // 3}]
    changed = {
        "run": made["run"] | {"shards": count, "syncer_lease_s": 20.0},
        "durability": {"mode": "journal"},
        "chaos": {"faults": faults if kill else []},
    }
    store, probe = emptied(folder), Probe()
    summary = launch.run_embedded(resolve(Recipe.model_validate(made | changed)), store, start, probe.on_status)
    events = list(read_run(store.root))
    told = [event.fact for event in events if isinstance(event.fact, Committed)]
    started = [event.fact for event in events if isinstance(event.fact, SyncerStarted)]
    answers = sorted(probe.answers_ms)
    return {
        "shards": count,
        "state": summary["state"],
        "commits": len(told),
        "epochs": len(started),
        "answers": len(answers),
        "answer_ms": {"median": statistics.median(answers), "p99": answers[int(0.99 * len(answers))]},
        "gb_moved": sum(summary["wire_bytes"].values()) / 1e9,
        "recovery_s": [row["recovery_s"] for row in summary["faults"]],
        "lost": sum(
            each.syncer_step > start.versions[each.fragment]
            for start in started
            for each in told
            if each.epoch < start.epoch
        ),
        "failed_checks": [row["name"] for row in summary["checks"] if row["status"] == "fail"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--size-mb", type=int, default=32, help="of a fragment in float32")
    arguments.add_argument("--learners", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--parameters", type=float, default=5e7, help="of the run")
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/shards"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    merges = []
    for count in (1, 2, 1, 2):  # twice, alternating: the machine may be busy
        row = merged_gb_s(count, options.size_mb, options.learners, options.rounds)
        row |= {"shards": count, "gb_s": row.pop("payloads") * options.size_mb * MB / 2 / row["seconds"] / 1e9}
        merges.append(row)
        print(row, file=sys.stderr)
    runs = [
        whole_run(count, int(options.parameters), kill, options.run_dir)
        for count, kill in ((1, False), (2, False), (2, True))
    ]
    if options.json:
        print(json.dumps({"merge": merges, "run": runs}, indent=1))
        return
    for row in (*merges, *runs):
        print(
            ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
