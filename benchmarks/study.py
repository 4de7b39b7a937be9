"""How fast is a whole study? 125 rounds of a byte model of 546,728 parameters with four learners, and the steps alone.

    python benchmarks/study.py [--rounds 125] [--vmap] [--json]

The recipe is the demonstration's with four layers of width 104, without faults, evaluated at its ends. The plain loop
takes the same learners' steps one after the other, without syncer, log and evaluation, on the same cores; it runs
before and after the study, for a tenth as many steps each, and compiles before it is timed. Seconds of CPU say more
than those of the clock where other programs share the cores; those of a step are what is beyond a study of one round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.recipe.toml_text import load  # noqa: E402
from orchestrator.store.compile_cache import compilation_cache  # noqa: E402

RECIPE = ROOT / "deploy/recipes/demo.toml"
MODEL = ("model.layers=4", "model.width=104", "eval.every=0", "eval.ngrams=false", "chaos.faults=[]", "budget.tokens=")
SHARE = 10  # the plain loop takes one step of so many


def study(settings: list[str], vmap: bool, folder: Path) -> dict[str, Any]:
    """The row of the seed, and the CPU's and the clock's seconds of the whole command."""
    options = [part for each in settings for part in ("--set", each)]
    command = [sys.executable, "-m", "orchestrator", "study", str(RECIPE), *options, "--out", str(folder), "--json"]
    begun, before = time.monotonic(), _cpu_s()
    done = subprocess.run([*command, *(["--vmap"] if vmap else [])], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    row: dict[str, Any] = json.loads(done.stdout)["seeds"][0]
    return row | {"wall_s": time.monotonic() - begun, "cpu_s": _cpu_s() - before}


def plain_loop(settings: list[str], steps: int) -> tuple[float, float]:
    """Seconds of the clock and of the CPU for one step of one learner, in a process of its own."""
    script = [sys.executable, __file__, "--plain", json.dumps(settings), str(steps)]
    environment = compilation_cache(Path(tempfile.gettempdir())) | os.environ
    done = subprocess.run(script, stdout=subprocess.PIPE, check=True, env=environment, cwd=ROOT)
    wall_s, cpu_s = json.loads(done.stdout)
    return wall_s, cpu_s


def _plain(settings: list[str], steps: int) -> list[float]:
    from learners.training.devices.device import fit, use_compile_cache

    fit(None, "cpu")
    from learners.training.step import make_step
    from learners.training.trainer import Trainer
    from learners.training.tree import deal
    from orchestrator.recipe.tasks import build_task

    use_compile_cache()
    recipe = load(RECIPE, settings)
    task, sizes = build_task(recipe), [pool.batch_size for pool in recipe.learners.values()]
    fragments, train_step = deal(task, recipe.sync), make_step(task, recipe.inner)
    trainers = [Trainer(task, fragments, recipe.inner, recipe.seed, train_step) for _ in sizes]
    at, taken = 0, 0
    while taken < steps + len(sizes):
        if taken == len(sizes):  # the first of each compiles
            begun, cpu = time.monotonic(), time.process_time()
        for trainer, size in zip(trainers, sizes, strict=True):
            trainer.step(at, size, 0.5)
            at += size
        taken += len(sizes)
    count = taken - len(sizes)
    return [(time.monotonic() - begun) / count, (time.process_time() - cpu) / count]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(rounds: int, vmap: bool) -> dict[str, Any]:
    recipe = load(RECIPE, [*MODEL, "budget.syncer_steps=1200"])
    syncer_steps, learners = rounds * recipe.sync.round_steps, len(recipe.learners)
    settings = [*MODEL, f"budget.syncer_steps={syncer_steps}"]
    folder = Path(tempfile.mkdtemp(prefix="diloco-study-"))
    alone = max(learners, syncer_steps * learners // SHARE)
    try:
        loops = [plain_loop(settings, alone)]
        first = study([*MODEL, f"budget.syncer_steps={recipe.sync.round_steps}"], vmap, folder / "first")
        row = study(settings, vmap, folder / "out")
        loops.append(plain_loop(settings, alone))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tokens = recipe.pools[0].batch_size * recipe.data.sequence_length  # of a step
    steps, beyond = row["processed"] // tokens, (row["processed"] - first["processed"]) / tokens
    plain_wall_s, plain_cpu_s = (sum(each) / len(loops) for each in zip(*loops, strict=True))
    return {
        "rounds": rounds,
        "steps": steps,
        "vmap": vmap,
        "wall_s": row["wall_s"],
        "cpu_s": row["cpu_s"],
        "tokens_per_s": row["processed"] / row["wall_s"],
        "step_cpu_ms": 1e3 * (row["cpu_s"] - first["cpu_s"]) / beyond if rounds > 1 else None,
        "plain_step_cpu_ms": 1e3 * plain_cpu_s,
        "plain_wall_s": plain_wall_s * steps,
        "plain_cpu_s": plain_cpu_s * steps,
        "eval_loss": row["eval_loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=125)
    parser.add_argument("--vmap", action="store_true", help="step all learners as one program")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plain", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(_plain(json.loads(options.plain[0]), int(options.plain[1]))))
        return
    row = measure(options.rounds, options.vmap)
    if options.json:
        print(json.dumps(row))
        return
    print(f"{row['rounds']} rounds, {row['steps']:,} steps: {row['wall_s']:.0f} s, {row['tokens_per_s']:,.0f} tokens/s")
    if row["step_cpu_ms"]:
        print(f"CPU: {row['step_cpu_ms']:.1f} ms a step with all of the study, {row['plain_step_cpu_ms']:.1f} ms alone")
    print(f"the plain loop would take {row['plain_wall_s']:.0f} s; held-out loss {row['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
