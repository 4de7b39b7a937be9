"""One GPU: a model alone and as learners that share the card; speed with and without sync, memory, a kill, a replay.

    python benchmarks/gpu.py [--devices gpu|cpu] [--counts 1,2,4] [--seconds 15] [--deadline-s 360] [--batch 16]
                             [--run-dir runs/gpu] [--json]

Phases, in this order; each prints its row as soon as it ends, and a row with `error` if it fails or is late:

    device      the checks at a learner's start: platform, memory, copies, bits
    copies      bandwidth between host and device, by the size of a copy, plain and pinned
    bare-N      N processes step without any sync: tokens per second, utilisation, device memory against `plan`
    synced-N    the same as a run with N learners, and its rate over bare-N's; with two, one is killed, and the time
                until it contributes again is measured
    replay      the run with two learners up to an early commit, computed again: time, and whether the bits are equal

On a GPU: 302 million parameters, compute in bfloat16 where the recipe has it, sequences of 256 bytes. `--devices cpu`:
a model of 25 thousand on CPU devices, which shows that the script works. XLA is told to be deterministic unless
XLA_FLAGS is set. benchmarks/gpu.sh prepares a bare machine and runs this.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_phases import SETTLE_S, SIZES, recipe_of  # noqa: E402
from orchestrator.recipe.resources import MEMORY_FRACTION, MEMORY_USABLE  # noqa: E402
from orchestrator.store.compile_cache import compilation_cache  # noqa: E402

SAMPLE_S = 0.5  # between two looks at the utilisation
END_S = 10.0  # for a phase that is late to end
# Besides `--seconds`, on a GPU; a CPU has three times as long.
REST_S = {"device": 90.0, "copies": 40.0, "bare": 75.0, "synced": 120.0, "replay": 90.0}


class Late(RuntimeError):
    """A phase took longer than it may."""


def nvidia_smi(*fields: str) -> list[list[str]]:
    """These fields of every GPU, as nvidia-smi prints them without units; no rows where it does not answer."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


class Sampler(threading.Thread):
    """Samples the devices' utilisation in percent, the GPU's or that of all cores, with the time of each."""

    def __init__(self, devices: str) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float, float | None]] = []  # when, percent, MiB in use
        self._devices = devices

    def run(self) -> None:
        import psutil

        while True:
            if self._devices == "cpu":
                self.samples.append((time.time(), psutil.cpu_percent(SAMPLE_S), None))
                continue
            with contextlib.suppress(ValueError):
                for percent, used in nvidia_smi("utilization.gpu", "memory.used")[:1]:
                    self.samples.append((time.time(), float(percent), float(used)))
            time.sleep(SAMPLE_S)

    def between(self, begin: float, end: float) -> dict[str, Any]:
        inside = [sample for sample in self.samples if begin <= sample[0] <= end]
        used = [mib for _, _, mib in inside if mib is not None]
        return {
            "utilisation_percent": statistics.mean(percent for _, percent, _ in inside) if inside else None,
            "card_used_mib": max(used, default=None),
        }


@contextlib.contextmanager
def child(job: Mapping[str, Any], extra: Mapping[str, str], errors: Path) -> Iterator[subprocess.Popen[str]]:
    """A phase's process, which leads a group of its own; it and what it started have ended afterwards."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "gpu_phases.py"), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
            env=dict(os.environ) | extra,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # a run ends cleanly then
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def answer(process: subprocess.Popen[str], deadline: float, errors: Path) -> dict[str, Any]:
    """What a phase's process prints at its end. Raises Late, and RuntimeError with its last words."""
    try:
        output, _ = process.communicate("go\n", timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Late("it did not end in time") from None
    if process.returncode:
        raise RuntimeError(last_words(process.returncode, errors))
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def last_words(code: int, errors: Path) -> str:
    said = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return f"code {code}: {' | '.join(said[-3:])[-600:]}"


class Bench:
    """Runs the phases one after the other, and prints a row for each."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._deadline = time.monotonic() + options.deadline_s
        self._sampler = Sampler(options.devices)
        self._sampler.start()
        self.rows: list[dict[str, Any]] = []

    def phase(self, name: str, measure: Callable[[float], dict[str, Any]]) -> None:
        """Add a phase's row. `measure`: from its deadline, monotonic seconds, to what it found."""
        began = time.monotonic()
        slower = 3.0 if self._options.devices == "cpu" else 1.0
        rest_s = slower * REST_S[name.split("-")[0]] + self._options.seconds
        row: dict[str, Any] = {"phase": name}
        if (left_s := self._deadline - began) < 5.0:
            row["error"] = "not begun: no time is left; give a later --deadline-s"
        else:
            try:
                row |= measure(began + min(rest_s, left_s))
            except Exception as error:  # the other phases go on
                row["error"] = f"{type(error).__name__}: {error}"
        row["phase_s"] = round(time.monotonic() - began, 1)
        self.rows.append(row)
        print(json.dumps(row) if self._options.json else in_words(row), flush=True)

    def job(self, phase: str, **more: Any) -> dict[str, Any]:
        common = {"devices": self._options.devices, "batch": self._options.batch, "seconds": self._options.seconds}
        return common | {"phase": phase} | more

    def alone(self, phase: str, deadline: float, **more: Any) -> dict[str, Any]:
        errors = self._folder / f"{phase}.txt"
        with child(self.job(phase, **more), {}, errors) as process:
            return answer(process, deadline, errors)

    def bare(self, learners: int, deadline: float) -> dict[str, Any]:
        from orchestrator.planner.sizing import memory
        from orchestrator.planner.sizing.model_sizes import shapes_of

        share = {} if self._options.devices == "cpu" else {MEMORY_FRACTION: f"{MEMORY_USABLE / learners:.3f}"}
        with contextlib.ExitStack() as stack:
            files = [self._folder / f"bare-{learners}-{index}.txt" for index in range(learners)]
            processes = [
                stack.enter_context(child(self.job("bare", learners=learners, index=index), share, errors))
                for index, errors in enumerate(files)
            ]
            for process, errors in zip(processes, files, strict=True):
                await_ready(process, deadline, errors)
            for process in processes:  # all at once
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            found = [answer(process, deadline, errors) for process, errors in zip(processes, files, strict=True)]
        begin, end = max(each["times"][0] for each in found), min(each["times"][-1] for each in found)
        steps = sum(begin < at <= end for each in found for at in each["times"])
        recipe = recipe_of(self._options.devices, learners, self._options.batch)
        shapes = shapes_of(recipe)
        planned = memory.of_run(recipe, shapes, open_steps=1)["learner-card"]
        return {
            "parameters": shapes.elements,
            "tokens_per_s": steps * found[0]["tokens"] / (end - begin),
            "step_ms": 1e3 * learners * (end - begin) / steps,
            **self._sampler.between(begin, end),
            "planned_device_bytes": planned.device_bytes,
            **{name: found[0][name] for name in ("parameters_and_state_bytes", "peak_bytes", "limit_bytes")},
        }

    def synced(self, learners: int, deadline: float) -> dict[str, Any]:
        alone = next((row.get("tokens_per_s") for row in self.rows if row["phase"] == f"bare-{learners}"), None)
        if alone is None:
            raise RuntimeError(f"bare-{learners} has no rate, which sets the length of this run")
        measured_s = 2.0 * SETTLE_S + self._options.seconds
        # With two, one is killed after that, and the run is stopped once it is back: it has no end of its own.
        tokens = 10**9 if learners == 2 else int(alone * measured_s)
        folder = str(self._options.run_dir / f"synced-{learners}")
        row = self.alone("synced", deadline, learners=learners, tokens=tokens, kill_after_s=measured_s, folder=folder)
        begin, end = row.pop("from"), row.pop("to")
        return {"synced_over_alone": row["tokens_per_s"] / alone, **row, **self._sampler.between(begin, end)}


def await_ready(process: subprocess.Popen[str], deadline: float, errors: Path) -> None:
    """Wait for the line that a process prints when it is ready. Raises Late and RuntimeError."""
    assert process.stdout is not None
    late = threading.Timer(max(0.1, deadline - time.monotonic()), process.kill)
    late.start()
    try:
        while line := process.stdout.readline():
            if line.strip() == "ready":
                return
    finally:
        late.cancel()
    code = process.wait()
    if time.monotonic() >= deadline:
        raise Late("it was not ready in time")
    raise RuntimeError(last_words(code, errors))


def in_words(row: Mapping[str, Any]) -> str:
    said = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, int | float))
    return f"{row['phase']:10} {row.get('error', said)}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--devices", choices=tuple(SIZES), default="gpu")
    arguments.add_argument("--counts", default="1,2,4", help="how many learners share the card")
    arguments.add_argument("--seconds", type=float, default=15.0, help="for which each rate is measured")
    arguments.add_argument("--deadline-s", type=float, default=360.0, help="for all phases")
    arguments.add_argument("--batch", type=int, help="samples per step and learner")
    arguments.add_argument("--run-dir", type=Path, default=Path("runs/gpu"))
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended then
    options.batch = options.batch or SIZES[options.devices].batch
    options.run_dir = options.run_dir.resolve()
    if options.devices == "gpu":
        os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    counts = [int(text) for text in options.counts.split(",")]
    with tempfile.TemporaryDirectory(prefix="diloco-gpu-") as folder:
        for name, value in compilation_cache(Path(folder)).items():
            os.environ.setdefault(name, value)
        bench = Bench(options, Path(folder))
        bench.phase("device", lambda deadline: bench.alone("device", deadline))
        bench.phase("copies", lambda deadline: bench.alone("copies", deadline))
        for count in counts:
            bench.phase(f"bare-{count}", lambda deadline, n=count: bench.bare(n, deadline))
            bench.phase(f"synced-{count}", lambda deadline, n=count: bench.synced(n, deadline))
            if count == 2:
                two = str(options.run_dir / "synced-2")
                bench.phase("replay", lambda deadline, folder=two: bench.alone("replay", deadline, folder=folder))
    sys.exit(any("error" in row for row in bench.rows))


if __name__ == "__main__":
    main()
