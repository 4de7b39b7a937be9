"""Where the time of a commit goes, from its quorum until the learners are told, and what the syncer pays for it.

    python benchmarks/commit.py [--step-ms 100 31] [--seconds 20] [--learners 4] [--elements 30000] [--json]

The real syncer and learner actors on a local Ray, without an orchestrator. A learner's step sleeps on its device, so
cores are there for all. P = H = 12, tau = 2, no grace: the decision falls with the quorum. Times are of the syncer's
own clock, in the median over the commits of a window that begins a few seconds after the first commit:

    read       from the quorum until the last contribution is checked
    merge      until the next value is computed
    order      until every earlier step is committed
    journal    until the commit is durable
    announce   until the notices are handed to Ray

The script runs against another version of the project too: PYTHONPATH=CHECKOUT python COPY/OF/commit.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if not any((Path(each) / "outer").is_dir() for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each):
    sys.path.insert(0, str(HERE.parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))  # for the task

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import ray  # noqa: E402

from learners.actor import LearnerActor  # noqa: E402
from learners.config import DataConfig, InnerConfig  # noqa: E402
from learners.training.initial_state import InitialState  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.runtime.launch import local_cluster  # noqa: E402
from orchestrator.runtime.specs import learner_spec, syncer_spec  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.actor import SyncerActor  # noqa: E402
from outer.journal.object_store import Folder  # noqa: E402
from outer.protocol import events_effects as outer  # noqa: E402
from outer.protocol.events_effects import Expect  # noqa: E402
from outer.protocol.facts import Committed, StepReopened  # noqa: E402
from outer.protocol.manifest import code_digest  # noqa: E402
from outer.protocol.messages import Notice, ReadRequest  # noqa: E402
from outer.ray_ports import RayPeer  # noqa: E402

WARM_S = 4.0  # after the first commit
START_S = 300.0
FRAGMENTS = 12
VIEW_S = 0.2  # as often as an orchestrator looks
PHASES = ("read", "merge", "order", "journal", "announce")


class Paced:
    """Twelve vectors that follow a number; a step sleeps on the device."""

    def __init__(self, data: DataConfig, seed: int, elements: int, step_s: float) -> None:
        self._elements, self._step_s = elements, step_s

    def init(self, rng: jax.Array) -> Any:
        return {f"w{number}": jnp.zeros(self._elements) for number in range(FRAGMENTS)}

    def loss(self, params: Any, batch: Any, rng: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        def slept(value: Any) -> Any:
            time.sleep(self._step_s)
            return np.asarray(value)

        target = jnp.mean(jax.pure_callback(slept, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch))
        return sum(jnp.mean((each - target) ** 2) for each in params.values()), {}

    def optimizer(self, inner: InnerConfig) -> optax.GradientTransformation:
        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int) -> Any:
        return np.ones(count, np.float32)

    def held_out(self, start: int, count: int) -> Any:
        return self.batch(start, count)

    def tokens(self, count: int) -> int:
        return count


class Timed(SyncerActor):
    """The syncer, and the times at which a step passes each point, in seconds of a monotonic clock."""

    def __init__(self, *arguments: Any) -> None:
        self._passed: dict[int, dict[str, float]] = {}
        self._collect_s: dict[int, float] = {}
        self._contributions = self._reports = self._reads_missed = self._reopened = 0
        super().__init__(*arguments)

    def _drive(self, event: outer.Event) -> Any:
        self._contributions += type(event).__name__ == "Contribution"
        self._reports += type(event).__name__ == "Report"
        self._reads_missed += isinstance(event, outer.ReadMissed)
        if isinstance(event, outer.Merged):
            self._pass(event.syncer_step, "merge")
        return super()._drive(event)

    def _perform(self, effects: list[outer.Effect]) -> Any:
        arrived = time.monotonic()
        for effect in effects:
            if isinstance(effect, outer.Send) and isinstance(effect.message, ReadRequest):
                self._pass(effect.message.syncer_step, "quorum", arrived)
            elif isinstance(effect, outer.Merge):
                self._pass(effect.syncer_step, "read", arrived)
            elif isinstance(effect, outer.Append) and isinstance(effect.record, Committed):
                self._pass(effect.record.syncer_step, "order", arrived)
                self._collect_s[effect.record.syncer_step] = effect.record.quorum_s
            elif isinstance(effect, outer.Publish):
                self._pass(effect.version, "journal", arrived)
            elif isinstance(effect, outer.Emit):
                self._reopened += isinstance(effect.fact, StepReopened)
        reply = super()._perform(effects)
        for effect in effects:
            if isinstance(effect, outer.Send) and isinstance(effect.message, Notice):
                self._pass(effect.message.version, "announce")
        return reply

    def _pass(self, step: int, point: str, at: float | None = None) -> None:
        self._passed.setdefault(step, {}).setdefault(point, time.monotonic() if at is None else at)

    async def measured(self) -> dict[str, Any]:
        threads: Counter[str] = Counter()
        named = {thread.native_id: thread.name for thread in threading.enumerate()}
        for task in Path("/proc/self/task").iterdir():
            name = named.get(int(task.name), (task / "comm").read_text().strip()).rstrip("0123456789_-")
            threads[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
        counts = {
            "contributions": self._contributions,
            "reports": self._reports,
            "reads_missed": self._reads_missed,
            "reopened": self._reopened,
        }
        journal = self._journal.view()
        written = {"groups": journal["groups"], "journal_bytes": journal["bytes"]}
        return {"at": time.monotonic(), "cpu_s": time.process_time(), "threads": dict(threads), **counts, **written}

    async def passed(self) -> dict[int, dict[str, float]]:
        return {step: {"collect_s": self._collect_s.get(step, 0.0), **each} for step, each in self._passed.items()}


def recipe(learners: int, elements: int, step_s: float) -> Recipe:
    return resolve(
        Recipe.model_validate(
            {
                "name": "commit",
                "task": f"{Path(__file__).stem}:Paced",
                "model": {"elements": elements, "step_s": step_s},
                "inner": {"optimizer": "sgd", "lr": 0.1},
                "sync": {"P": FRAGMENTS, "H": FRAGMENTS, "tau": 2, "quorum": "all", "grace": 0.0, "lease_s": 60.0},
                "pools": [{"name": "t", "learners": learners, "batch_size": 1}],
                "budget": {"syncer_steps": 10**9},
                "eval": {"every": 0},
                "run": {"metrics": False},
            }
        )
    )


def measure(wanted: Recipe, seconds: float, store: RunStore) -> dict[str, Any]:
    code, objects = code_digest(), Folder(store.root)
    spec = replace(syncer_spec(wanted, code, objects), epoch=1)
    initial = InitialState(wanted.task, wanted.model, wanted.data, wanted.seed, wanted.sync, wanted.warm_start)
    syncer = ray.remote(Timed).options(num_cpus=0, max_concurrency=1000).remote(spec, initial)
    ray.get(syncer.start.remote(), timeout=START_S)
    pool, runs = wanted.pools[0], []
    for name in wanted.learners:
        ray.get(syncer.expect.remote(Expect(name, 1, START_S, pool.batch_size)), timeout=START_S)
        learner = ray.remote(LearnerActor).options(num_cpus=0)
        told = replace(learner_spec(wanted, code, name, 1, pool, None), store=objects)
        handle = learner.remote(told, RayPeer(syncer))
        runs.append((handle, handle.run.remote()))

    def look() -> Any:
        failed, _ = ray.wait([run for _, run in runs], timeout=0)
        assert not failed, ray.get(failed)
        time.sleep(VIEW_S)
        return ray.get(syncer.view.remote(), timeout=START_S)

    give_up_at = time.monotonic() + START_S
    while look()["syncer_step"] < 1:
        assert time.monotonic() < give_up_at, "no commit"
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        look()
    before = ray.get(syncer.measured.remote(), timeout=START_S)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        view = look()
    after = ray.get(syncer.measured.remote(), timeout=START_S)
    passed = ray.get(syncer.passed.remote(), timeout=START_S)
    for handle, _ in runs:
        ray.kill(handle)
    ray.kill(syncer)
    return figures(passed, before, after, view["step_s"])


def figures(
    passed: dict[int, dict[str, float]], before: dict[str, Any], after: dict[str, Any], step_s: float
) -> dict[str, Any]:
    whole = [each for each in passed.values() if {"quorum", *PHASES} <= set(each)]
    inside = [each for each in whole if before["at"] <= each["quorum"] and each["announce"] <= after["at"]]
    points = ("quorum", *PHASES)
    first = min(whole, key=lambda each: each["announce"])
    lasted, used = after["at"] - before["at"], {key: after[key] - before[key] for key in after if key != "threads"}
    cpu_ms = 1e3 * used["cpu_s"]
    threads = {name: 1e3 * (s - before["threads"].get(name, 0.0)) for name, s in after["threads"].items()}
    total = sorted(1e3 * (each["announce"] - each["quorum"]) for each in inside)
    return {
        "step_ms": 1e3 * step_s,
        "commits": len(inside),
        "commits_per_step": len(inside) / lasted * step_s,
        "opened_to_quorum_ms": statistics.median(1e3 * each["collect_s"] for each in inside),
        "quorum_to_announced_ms": statistics.median(total),
        "quorum_to_announced_p90_ms": total[int(0.9 * len(total))],
        "phases_ms": {
            name: statistics.median(1e3 * (each[name] - each[since]) for each in inside)
            for since, name in itertools.pairwise(points)
        },
        "first_commit_s": first["announce"] - first["quorum"],
        "syncer_cores": used["cpu_s"] / lasted,
        "cpu_ms_per_commit": cpu_ms / len(inside),
        "cpu_ms_per_contribution": cpu_ms / used["contributions"],
        **{name: used[name] for name in ("reports", "reads_missed", "reopened")},
        "groups": used["groups"],
        "journal_bytes": used["journal_bytes"],
        "threads_ms_per_commit": {
            name: ms / len(inside) for name, ms in Counter(threads).most_common(8) if ms / len(inside) >= 0.05
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[100.0, 31.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--elements", type=int, default=30_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for step_ms in given.step_ms:
        wanted = recipe(given.learners, given.elements, step_ms / 1e3)
        with tempfile.TemporaryDirectory(prefix="commit-") as folder:
            store = RunStore(Path(folder))
            store.create()
            with local_cluster(wanted, store):
                rows.append(measure(wanted, given.seconds, store))
    if given.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    for row in rows:
        for name, value in row.items():
            shown = {key: round(ms, 2) for key, ms in value.items()} if isinstance(value, dict) else value
            print(f"{name:28} {shown if isinstance(shown, dict) else f'{shown:.4g}'}")


if __name__ == "__main__":
    main()
