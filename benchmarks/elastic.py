"""A running job grows and shrinks: does its speed follow, and is anything lost?

    python benchmarks/elastic.py [--by nodes|scale] [--phase-s 30] [--step-s 0.2] [--run-dir runs/elastic] [--json]

By nodes: a pool of one learner and an opportunistic pool, on a cluster of fake nodes of this host. Nodes come and go by
a schedule: they give notice (`ray drain-node`) and end once their learners have left; the last one ends without. By
scale: a pool of two learners is made four and two again by `diloco scale`, as a user would.

Learners are paced: a step takes `--step-s` seconds, most of them asleep, so that four of them fit on two cores and
the number of learners decides the speed, as it does where each has hardware of its own. Tokens committed per second are
read from the log, over the settled part of each phase.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import PoolScaled  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump, load  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.compile_cache import compilation_cache  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.protocol.facts import Committed, DrainStarted, LearnerFenced  # noqa: E402

BATCH, LENGTH = 2, 96
ALONE_S = 0.008  # of a step of this batch with a core to itself, about
SIZES = (2, 4, 2)
NODES = (0, 2, 3, 1, 2, 0)  # of the opportunistic pool, phase by phase; the last to go give no notice
NOTICE_S = 60.0
SETTLE_S = 240.0  # for learners to step, or to have left


class Steering:
    """Once the learners step: a phase at each size, then the end."""

    def __init__(self, folder: Path, phase_s: float) -> None:
        self.phases: list[tuple[float, float]] = []  # settled parts, wall time
        self.failure = ""
        self._folder, self._phase_s = folder, phase_s
        self._thread: threading.Thread | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        rows = status["learners"]
        if self._thread is None and len(rows) == SIZES[0] and all(row["state"] == "stepping" for row in rows):
            self._thread = threading.Thread(target=self._steer, daemon=True)
            self._thread.start()

    def _steer(self) -> None:
        for size in (None, *SIZES[1:]):
            if size is not None:
                self._diloco("scale", "local", str(size), "--wait")
            begin = time.time() + 3.0
            time.sleep(self._phase_s)
            self.phases.append((begin, time.time()))
        self._diloco("stop")

    def _diloco(self, *words: str) -> None:
        command = [sys.executable, "-m", "orchestrator", *words, str(self._folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
        if done.returncode:
            self.failure = self.failure or done.stderr


class Schedule(Steering):
    """Once the first learner steps: a phase with each number of nodes of the opportunistic pool, then the end."""

    def __init__(self, folder: Path, phase_s: float, cluster: Any) -> None:
        super().__init__(folder, phase_s)
        self.followed_s: list[
            float
        ] = []  # from the first node that comes, or gives notice, until all step or have left
        self._cluster, self._nodes, self._stepping = cluster, list[Any](), list[str]()
        self._there = set[str]()  # nodes of learners that step or are about to leave
        self._script = self._steps()

    def __call__(self, status: Mapping[str, Any]) -> None:
        """Go on with the schedule, in the thread that Ray lets start nodes."""
        self._stepping = [row["name"] for row in status["learners"] if row["state"] == "stepping"]
        self._there = {row["node"] for row in status["learners"] if row["state"] in ("stepping", "draining")}
        try:
            next(self._script, None)
        except Exception as error:
            self.failure = repr(error)
            self._stop()

    def _steps(self) -> Iterator[None]:
        yield from self._until(lambda: bool(self._stepping), "a learner steps")
        for phase, nodes in enumerate(NODES):
            began = time.monotonic()
            while nodes > len(self._nodes):
                self._nodes.append(self._add())
            while nodes < len(self._nodes):
                yield from self._take(self._nodes.pop(0), notice=phase < len(NODES) - 1)
            yield from self._until(lambda nodes=nodes: len(self._stepping) == nodes + 1, f"{nodes + 1} learners step")
            self.followed_s.append(time.monotonic() - began)
            begin = time.time() + 3.0
            yield from self._until(lambda end=begin + self._phase_s: time.time() >= end, "the phase is over")
            self.phases.append((begin, time.time()))
        self._stop()

    def _stop(self) -> None:
        RunStore(self._folder).write_json("stop", {"reason": "the schedule is over"})

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, labels={"region": "spot"}, object_store_memory=80 * 2**20)

    def _take(self, node: Any, notice: bool) -> Iterator[None]:
        if notice:
            ray = Path(sys.executable).with_name("ray")
            where = ["--address", self._cluster.address, "--node-id", node.node_id]
            how = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken away"]
            given = ["--deadline-remaining-seconds", str(int(NOTICE_S))]
            subprocess.run([ray, "drain-node", *where, *how, *given], check=True, capture_output=True, timeout=60)
            yield from self._until(lambda: node.node_id not in self._there, "its learner leaves")
        self._cluster.remove_node(node, allow_graceful=False)

    @staticmethod
    def _until(holds: Callable[[], bool], what: str) -> Iterator[None]:
        deadline = time.monotonic() + SETTLE_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {SETTLE_S:g} s: {what}")
            yield


def rates(events: list[Event], phases: list[tuple[float, float]]) -> list[float]:
    """Committed tokens a second in each phase."""
    commits = [(e.at, e.fact.tokens_committed) for e in events if isinstance(e.fact, Committed)]
    found = []
    for begin, end in phases:
        inside = [(at, tokens) for at, tokens in commits if begin <= at <= end]
        found.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    return found


def measure(events: list[Event], names: list[str], steering: Steering, summary: Mapping[str, Any]) -> dict[str, Any]:
    stepped = {(e.writer, e.incarnation) for e in events if isinstance(e.fact, StepFinished)}
    began = {(e.fact.learner, e.fact.incarnation): e.at for e in events if isinstance(e.fact, DrainStarted)}
    left = {(e.fact.learner, e.fact.incarnation): e.at for e in events if isinstance(e.fact, LearnerFenced)}
    return {
        "tokens_per_s": list(zip(names, rates(events, steering.phases), strict=True)),
        "scaled": [
            (e.fact.learners, e.fact.added, e.fact.removed, e.fact.reason)
            for e in events
            if isinstance(e.fact, PoolScaled)
        ],
        **({"followed_s": steering.followed_s} if isinstance(steering, Schedule) else {}),
        "drain_s": {f"{key[0]}.{key[1]}": left[key] - at for key, at in began.items() if key in stepped},
        "tokens": summary["tokens"],
        "participation": summary["participation"],
        "broken": [check for check in summary["checks"] if check["status"] not in ("pass", "idle")],
        "state": summary["state"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--by", choices=("nodes", "scale"), default="nodes")
    arguments.add_argument("--phase-s", type=float, default=30.0)
    arguments.add_argument("--step-s", type=float, default=0.2)
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/elastic"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    store = emptied(options.run_dir)
    by = by_nodes if options.by == "nodes" else by_scale
    names, steering, summary = by(store, options.phase_s, options.step_s / ALONE_S)
    if steering.failure:
        raise SystemExit(steering.failure)
    report = measure(read_run(store.root), names, steering, summary)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    alone = report["tokens_per_s"][0][1]
    for name, rate in report["tokens_per_s"]:
        print(f"{name} learners {rate:8,.0f} tokens/s  {rate / alone:.2f}x")
    for name, seconds in report["drain_s"].items():
        print(f"{name} left {seconds:.1f} s after it began to drain")
    print(f"tokens {report['tokens']}; failed checks: {report['broken'] or 'none'}; {report['state']}")


def wanted(store: RunStore, pools: list[str], slowdown: float) -> Recipe:
    pool = ", ".join(f"{{{each}, batch_size = {BATCH}, slowdown = {slowdown:.1f}}}" for each in pools)
    settings = ["name=elastic", f"pools=[{pool}]", "budget.tokens=1_000_000_000", "sync.quorum=1", "eval.every=0"]
    recipe = resolve(load(ROOT / "deploy/recipes/local.toml", settings))
    store.write_text(RECIPE_FILE, dump(recipe))
    return recipe


def by_scale(store: RunStore, phase_s: float, slowdown: float) -> tuple[list[str], Steering, dict[str, Any]]:
    from orchestrator.runtime import launch

    recipe = wanted(store, ['name = "local", learners = 2, max = 4'], slowdown)
    steering = Steering(store.root, phase_s)
    return list(map(str, SIZES)), steering, launch.run_embedded(recipe, store, None, steering)


def by_nodes(store: RunStore, phase_s: float, slowdown: float) -> tuple[list[str], Steering, dict[str, Any]]:
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    os.environ |= compilation_cache(store.root)
    import ray
    from ray.cluster_utils import Cluster

    from orchestrator.runtime.launch import start_and_wait
    from orchestrator.runtime.placement import RunPlacement

    spot = f'name = "spot", region = "spot", opportunistic = true, max = {max(NODES)}'
    recipe = wanted(store, ['name = "base", region = "here"', spot], slowdown)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=4, labels={"region": "here"}, object_store_memory=200 * 2**20)
        ray.init(cluster.address, namespace="elastic", log_to_driver=False)
        schedule = Schedule(store.root, phase_s, cluster)
        summary = start_and_wait(recipe, store, RunPlacement("elastic", cores=0), None, schedule, detach=False)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return [str(1 + nodes) for nodes in NODES], schedule, summary


if __name__ == "__main__":
    main()
