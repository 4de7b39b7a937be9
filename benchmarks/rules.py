"""What do the rules in the box do to the loss? A byte model, four learners in lock-step, at equal tokens.

    python benchmarks/rules.py [--rounds 60] [--seeds 2] [--only PART] [--json]

`alike`: learners alike. `heavy`: they too, with an outer momentum of 0.9. `wild`: the inner learning rate of one is 300
times the others'. `small`: the batches of one are an eighth of the others'. Each row is the held-out loss at the end,
and what it is more than the first row's of its part, by seed. --only: parts and rows whose `part rule` contains this.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.harness.lockstep import LockStep  # noqa: E402
from learners.training.evaluator import Evaluator  # noqa: E402
from orchestrator.recipe.tasks import build_task  # noqa: E402
from orchestrator.recipe.toml_text import load  # noqa: E402
from outer.protocol.syncer import Budget  # noqa: E402

RECIPE = ROOT / "deploy/recipes/demo.toml"
SETTINGS = ["model.layers=1", "model.width=32", "data.sequence_length=32", "sync.H=4", "sync.P=4", "sync.tau=1"]
SETTINGS += ["eval.every=0", "chaos.faults=[]", "budget.tokens="]
WILD = 300.0  # times the others' inner learning rate
BATCH, SMALL = 8, 1
DEFAULT: list[str] = []
HEAVY = ["outer.momentum=0.9"]
MERGE = {"default": DEFAULT, **{rule: [f"outer.merge={rule}"] for rule in ("avg", "median", "clip")}}
MOMENTUM = {"delayed_nesterov": ["outer.optimizer=delayed_nesterov"]}
PARTS = {
    "wild": MERGE,
    "alike": MERGE | MOMENTUM,
    "heavy": {"default": HEAVY, **{rule: [*HEAVY, *settings] for rule, settings in MOMENTUM.items()}},
    "small": {"default": DEFAULT, "tokens": ["sync.weights=tokens"], "equal": ["sync.weights=equal"]},
}


def loss(part: str, settings: list[str], rounds: int, seed: int) -> tuple[float, int]:
    """Held-out loss, and committed tokens."""
    recipe = load(RECIPE, [*SETTINGS, *settings, f"seed={seed}", f"budget.syncer_steps={rounds * 4}"])
    task = build_task(recipe)
    sizes = dict.fromkeys(("a", "b", "c", "d"), BATCH) | ({"d": SMALL} if part == "small" else {})
    shell = LockStep(
        task=task,
        sync=recipe.sync,
        outer_config=recipe.outer,
        inner=recipe.inner,
        learners=sizes,
        quorum=len(sizes),
        budget=Budget(None, recipe.budget.syncer_steps),
        seed=seed,
    )
    if part == "wild":
        trainer = shell._units["d"].trainer
        inputs = trainer.inputs
        setattr(trainer, "inputs", lambda *step: (*(given := inputs(*step))[:-1], WILD * given[-1]))  # noqa: B010
    thetas = shell.run().thetas
    return Evaluator(task, shell.fragments, 256, seed=seed).loss(thetas), shell._syncer.tokens_committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for part, rules in PARTS.items():
        first: list[float] | None = None
        for rule, settings in rules.items():
            if options.only not in f"{part} {rule}":
                continue
            found = [loss(part, settings, options.rounds, seed) for seed in range(options.seeds)]
            losses = [each for each, _ in found]
            first = first or losses
            more = [one - other for one, other in zip(losses, first, strict=True)]
            row: dict[str, Any] = {"part": part, "rule": rule, "losses": losses, "more": more, "tokens": found[0][1]}
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                told = "  ".join(f"{each:.4f} ({by:+.4f})" for each, by in zip(losses, more, strict=True))
                print(f"{part:6} {rule:40} {told}  {row['tokens']:,} tokens", flush=True)


if __name__ == "__main__":
    main()
