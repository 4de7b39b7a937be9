"""What late work is worth: one of four learners gets every version late, by sync.base_window.

    python benchmarks/late.py [--rounds 80] [--seeds 3] [--windows 0 1 2] [--json]

`share`: the fleet simulator with the production machines; of the commits, those that the learner takes part in when
fetching all fragments takes 1.5 or 2.5 rounds of its link, and the share of all tokens that is committed.
`loss`: a byte model on Python's own sources, in lock-step, where each version reaches the learner 1.5 rounds late; the
mean held-out loss in nats per byte after as many rounds, and its difference to the first window with twice its standard
error, paired by seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.lockstep import LockStep  # noqa: E402
from benchmarks.studies.models import even  # noqa: E402
from learners.config import DataConfig, InnerConfig  # noqa: E402
from learners.protocol import events_effects as unit  # noqa: E402
from learners.training.evaluator import Evaluator  # noqa: E402
from learners.training.models.language import ByteLanguageModel  # noqa: E402
from orchestrator.planner.fleet.description import Fleet, FleetLink, FleetMember, Steady  # noqa: E402
from orchestrator.planner.fleet.world import simulate  # noqa: E402
from outer.config import OuterConfig, SyncConfig  # noqa: E402
from outer.protocol.facts import Committed  # noqa: E402
from outer.protocol.schedule import Budget  # noqa: E402

NAMES = ("a", "b", "c", "far")
FAR, NEAR = "far", "near"
ROUND = 12  # syncer steps, of a second
FRAGMENTS, ELEMENTS = 4, 1_000_000
LATE = 1.5  # rounds, in lock-step
LENGTH, BATCH, HELD_OUT = 64, 8, 128
MODEL = {"layers": 2, "width": 64, "heads": 4}


def sync(adopt: str, window: int) -> SyncConfig:
    given = {"P": FRAGMENTS, "H": ROUND, "tau": 2, "adopt": adopt, "base_window": window, "transfer_s": 600.0}
    return SyncConfig.model_validate(given)


def share(adopt: str, window: int, rounds: float) -> dict[str, Any]:
    """One learner's link carries a whole model down in so many rounds; up, and for the others, links take no time."""
    members = (
        FleetMember(name, BATCH, 800, Steady(1.0 + 0.01 * index), region=FAR if name == FAR else NEAR)
        for index, name in enumerate(NAMES)
    )
    bits = 32 * FRAGMENTS * ELEMENTS / (rounds * ROUND)
    outcome, _ = simulate(
        Fleet(
            sync=sync(adopt, window),
            quorum=1,
            fragments=even(FRAGMENTS * ELEMENTS, FRAGMENTS),
            members=tuple(members),
            budget=Budget(None, 10**9),
            warm=True,
            links={(NEAR, FAR): FleetLink(bits)},
            syncer_region=NEAR,
        ),
        until_s=120.0 * ROUND,
        warm_up_s=20.0 * ROUND,
    )
    took_part = outcome.contributions.get(FAR, 0) / outcome.commits
    return {"participation": round(took_part, 3), "committed": round(outcome.tokens_committed / outcome.tokens, 3)}


class FarAway(LockStep):
    """Versions reach one learner late, each as it was when it was asked for."""

    _under_way: list[tuple[float, unit.Event]]

    def _to_learner(self, name: str, event: unit.Event) -> None:
        if name == FAR and isinstance(event, unit.Fetched) and event.version:
            self._under_way = [*getattr(self, "_under_way", []), (self._now + LATE * ROUND, event)]
        else:
            super()._to_learner(name, event)

    def _round(self) -> bool:
        under_way = getattr(self, "_under_way", [])
        self._under_way = [(at, event) for at, event in under_way if at > self._now]
        for at, event in under_way:
            if at <= self._now:
                super()._to_learner(FAR, event)
        return super()._round()


def trained(adopt: str, window: int, seed: int, rounds: int) -> tuple[float, float]:
    """The held-out loss after so many rounds, and the share of commits that the late learner takes part in."""
    task = ByteLanguageModel(DataConfig(sequence_length=LENGTH), seed, **MODEL)
    run = FarAway(
        task=task,
        sync=sync(adopt, window),
        outer_config=OuterConfig(),
        inner=InnerConfig(lr=3e-3),
        learners=dict.fromkeys(NAMES, BATCH),
        quorum=1,
        budget=Budget(None, rounds * ROUND),
        span_steps=16,
        seed=seed,
    )
    run.run()
    commits = [said.fact for said in run.facts if isinstance(said.fact, Committed)]
    took_part = np.mean([any(one.learner == FAR for one in commit.participants) for commit in commits])
    loss = Evaluator(task, run.fragments, HELD_OUT, seed=seed).loss(run.parameters.thetas)
    return float(loss), float(took_part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            "  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr if asked.json else sys.stdout
        )

    for adopt in ("overwrite", "rebase"):
        for rounds in (1.5, 2.5):
            for window in asked.windows:
                tell({"adopt": adopt, "rounds_late": rounds, "base_window": window} | share(adopt, window, rounds))
    for adopt in ("overwrite", "rebase"):
        first: list[float] = []
        for window in asked.windows:
            losses, took_part = zip(
                *(trained(adopt, window, seed, asked.rounds) for seed in range(asked.seeds)), strict=True
            )
            first = first or list(losses)
            apart = np.subtract(losses, first)
            error = 2.0 * apart.std(ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
            row = {"adopt": adopt, "base_window": window, "loss": round(float(np.mean(losses)), 4)}
            row |= {"difference": round(float(apart.mean()), 4), "two_errors": round(float(error), 4)}
            tell(row | {"participation": round(float(np.mean(took_part)), 3)})
    if asked.json:
        print(json.dumps({"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
