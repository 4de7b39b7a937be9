"""What the processes of benchmarks/gpu.py do: one phase each, described by JSON; prints what it found as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from learners.config import InnerConfig  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402

MIB = 2**20
SETTLE_S = 2.0  # after the last learner's first step, before rates are measured
BACK_S = 3.0  # for which a killed learner steps again before the run is stopped
REPLAYED = 0.15  # of its commits


@dataclass(frozen=True)
class Size:
    """What is trained."""

    model: dict[str, int]
    sequence_length: int
    batch: int
    copies: tuple[int, ...]  # bytes


SIZES = {
    "gpu": Size({"layers": 24, "width": 1024, "heads": 16}, 256, 16, (4 * MIB, 64 * MIB, 256 * MIB)),
    "cpu": Size({"layers": 2, "width": 32, "heads": 2}, 32, 8, (MIB,)),
}


def recipe_of(devices: str, learners: int, batch: int, tokens: int = 10**9) -> Recipe:
    """The recipe of a run with this many learners, each with its share of the GPU or a CPU of its own."""
    size = SIZES[devices]
    shared = {"GPU": 1.0 / learners} if devices == "gpu" else {}
    inner = {"optimizer": "adamw", "lr": 3e-4}
    if "compute" in InnerConfig.model_fields:
        inner |= {"parameters": "float32", "compute": "bfloat16"}
    tables = {
        "name": f"gpu-{learners}",
        "model": size.model,
        "data": {"sequence_length": size.sequence_length},
        "inner": inner,
        "sync": {"P": 12, "H": 96, "tau": 2, "quorum": max(1, learners - 1)},
        "pools": [{"name": "card", "learners": learners, "batch_size": batch, "resources": {"CPU": 1.0} | shared}],
        "budget": {"tokens": tokens},
        "eval": {"every": 0, "sequences": 2},
    }
    return resolve(Recipe.model_validate(tables))


@dataclass(frozen=True)
class CopyRates:
    """Bytes per second, each the best of several copies: as a learner copies fragments, and between the device and
    pinned memory alone, None where there is none.
    """

    to_host: float
    to_device: float
    pinned_to_host: float | None
    pinned_to_device: float | None


def copy_rates(device: Any, size: int, budget_s: float) -> CopyRates:
    """Measure copies of `size` bytes between host and device; about `budget_s` seconds for each of the four ways."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from learners.training.devices import placement

    host = np.ones(size // 4, np.float32)
    on_device = jax.sharding.SingleDeviceSharding(device)
    there = jax.device_put(host, on_device).block_until_ready()

    def to_host() -> float:
        fresh = jnp.copy(there).block_until_ready()  # an array keeps its host copy: each time another one
        began = time.perf_counter()
        placement.to_host(fresh)
        return time.perf_counter() - began

    def to_device() -> float:
        began = time.perf_counter()
        placement.own(host, on_device).block_until_ready()
        return time.perf_counter() - began

    def moved(array: Any, to: Any) -> float:
        began = time.perf_counter()
        jax.device_put(array, to).block_until_ready()
        return time.perf_counter() - began

    def rate(copy: Callable[[], float]) -> float:
        return size / _best(copy, budget_s)

    if not placement.has_pinned_memory(device):
        return CopyRates(rate(to_host), rate(to_device), None, None)
    pinned = on_device.with_memory_kind(placement.PINNED)
    held = jax.device_put(there, pinned).block_until_ready()
    down, up = partial(moved, there, pinned), partial(moved, held, on_device)
    return CopyRates(rate(to_host), rate(to_device), rate(down), rate(up))


def _best(timed: Callable[[], float], budget_s: float) -> float:
    """The shortest of at least three times, in seconds; no other begins after `budget_s`."""
    began, times = time.perf_counter(), [timed()]
    while len(times) < 3 or time.perf_counter() - began < budget_s:
        times.append(timed())
        if len(times) == 32:
            break
    return max(min(times), 1e-9)


def device(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a learner's start finds; a failure ends the phase."""
    from learners.training.devices.device import fit

    fit(None, job["devices"])
    from learners.training.devices import device_checks

    return {"warnings": device_checks.at_start(job["devices"])}


def copies(job: Mapping[str, Any]) -> dict[str, Any]:
    import jax

    from learners.training.devices.device import fit

    fit(None, job["devices"])
    device, sizes = jax.local_devices()[0], SIZES[job["devices"]].copies
    rates = {f"{size // MIB} MiB": asdict(copy_rates(device, size, 1.0)) for size in sizes}
    return {"device": device.device_kind, "bytes_per_s": rates}


def bare(job: Mapping[str, Any]) -> dict[str, Any]:
    """One of the processes that step without sync: prints a line when it is ready, and begins when it reads one."""
    from learners.training.devices.device import fit, use_compile_cache

    fit(None, job["devices"])
    import jax

    from learners.training import task
    from learners.training.devices import device_checks
    from learners.training.trainer import Trainer
    from learners.training.tree import deal

    device_checks.refuse(device_checks.platform_taken(job["devices"]))
    use_compile_cache()
    recipe = recipe_of(job["devices"], job["learners"], job["batch"])
    built = task.load(recipe.task, recipe.data, recipe.seed, dict(recipe.model))
    trainer = Trainer(built, deal(built, recipe.sync), recipe.inner, recipe.seed + job["index"])
    held = jax.local_devices()[0].memory_stats() or {}
    trainer.warm_up(job["batch"])
    print("ready", flush=True)
    sys.stdin.readline()
    times = list(step_for(trainer, job["batch"], job["seconds"]))
    stats = jax.local_devices()[0].memory_stats() or {}
    return {
        "times": times,
        "tokens": built.tokens(job["batch"]),
        "parameters_and_state_bytes": held.get("bytes_in_use"),
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "limit_bytes": stats.get("bytes_limit"),
    }


def step_for(trainer: Any, batch: int, seconds: float) -> Iterator[float]:
    """Step as a learner does, the next one dispatched before the last one's loss is read. Yields when each finished."""
    until, start, flying = time.time() + seconds, 0, None
    while time.time() < until:
        following = trainer.dispatch(start, batch, 0.5)
        start += batch
        if flying is not None:
            flying.result()
            yield time.time()
        flying = following
    if flying is not None:
        flying.result()
        yield time.time()


def synced(job: Mapping[str, Any]) -> dict[str, Any]:
    from benchmarks.fresh import emptied
    from orchestrator.eventlog.reader import read_run
    from orchestrator.recipe.toml_text import dump
    from orchestrator.runtime import launch
    from orchestrator.store.readers import RECIPE_FILE

    recipe = recipe_of(job["devices"], job["learners"], job["batch"], job["tokens"])
    store = emptied(Path(job["folder"]))
    store.write_text(RECIPE_FILE, dump(recipe))
    killed: list[tuple[float, str]] = []
    stepping, back = list[float](), list[float]()

    def watch(status: Mapping[str, Any]) -> None:
        """Kill the first learner once both have stepped for a while, and stop the run once it steps again."""
        rows = status["learners"]
        if job["learners"] != 2 or not rows or any(row["state"] != "stepping" for row in rows):
            return
        stepping.append(time.monotonic())
        if not killed and stepping[-1] - stepping[0] >= job["kill_after_s"]:
            os.kill(rows[0]["pid"], signal.SIGKILL)
            killed.append((time.time(), rows[0]["name"]))
        elif killed and rows[0]["incarnation"] > 1:
            back.append(time.monotonic())
            if back[-1] - back[0] >= BACK_S:
                store.write_json("stop", {"reason": "it is back"})

    with contextlib.redirect_stdout(sys.stderr):
        summary = launch.run_embedded(recipe, store, None, watch)
    return measured(read_run(store.root), killed, summary)


def measured(events: list[Any], killed: list[tuple[float, str]], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Rates while all learners step, up to a kill; and what the kill cost."""
    from learners.protocol.facts import DeviceTaken, StepFinished
    from outer.protocol.facts import Committed

    steps: dict[str, list[tuple[float, int, float]]] = {}
    for event in events:
        if isinstance(event.fact, StepFinished) and event.incarnation == 1:
            steps.setdefault(event.writer, []).append((event.at, event.fact.tokens, event.fact.waited_s))
    begin = max(of[0][0] for of in steps.values()) + SETTLE_S
    end = min([of[-1][0] for of in steps.values()] + [at for at, _ in killed])
    inside = {name: [row for row in of if begin < row[0] <= end] for name, of in steps.items()}
    count = sum(map(len, inside.values()))
    if end <= begin or not count:
        raise RuntimeError(f"the learners stepped together for {end - begin:.1f} s only: give more --seconds")
    parts = summary["token_fragments"]  # a step whose fragment is overwritten before it is sent has a rate, but no use
    row: dict[str, Any] = {
        "from": begin,
        "to": end,
        "tokens_per_s": sum(row[1] for of in inside.values() for row in of) / (end - begin),
        "step_ms": 1e3 * len(inside) * (end - begin) / count,
        "waited_share": sum(row[2] for of in inside.values() for row in of) / (len(inside) * (end - begin)),
        "commits": sum(isinstance(event.fact, Committed) for event in events),
        "committed_share": parts["committed"] / parts["processed"],
        "state": summary["state"],
        "violated": [check["name"] for check in summary["checks"] if check["status"] == "violated"],
        "warnings": next((event.fact.warnings for event in events if isinstance(event.fact, DeviceTaken)), {}),
    }
    if killed:
        ((at, name),) = killed
        back = [
            event.at - at
            for event in events
            if isinstance(event.fact, Committed)
            and any(each.learner == name and each.incarnation > 1 for each in event.fact.participants)
        ]
        phases = [fault["recovery_phases"] for fault in summary["faults"]][:1]
        row["kill"] = {"contributing_again_s": min(back, default=None), "phases": phases[0] if phases else None}
    return row


def replay(job: Mapping[str, Any]) -> dict[str, Any]:
    from learners.protocol.facts import StepFinished
    from orchestrator.eventlog.reader import read_run
    from outer.protocol.facts import Committed

    events = read_run(Path(job["folder"]))
    commits = [event for event in events if isinstance(event.fact, Committed)]
    last = commits[max(0, int(REPLAYED * len(commits)) - 1)]
    took = last.at - min(event.at for event in events if isinstance(event.fact, StepFinished))
    command = [sys.executable, "-m", "orchestrator", "replay", job["folder"], "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--until", str(last.fact.syncer_step)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if not done.stdout.strip():
        raise RuntimeError(f"diloco replay ended with code {done.returncode}: {done.stderr[-400:]}")
    outcome = json.loads(done.stdout.splitlines()[-1])
    if "error" in outcome:
        raise RuntimeError(f"diloco replay: {outcome['error']}")
    said = {name: outcome.get(name) for name in ("bit_equal", "steps", "commits", "hints", "difference")}
    return said | {"run_s": took, "replay_s": outcome.get("seconds"), "with_start_s": seconds}


PHASES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "device": device,
    "copies": copies,
    "bare": bare,
    "synced": synced,
    "replay": replay,
}


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    print(json.dumps(PHASES[described["phase"]](described)))
