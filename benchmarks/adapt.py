"""One learner's link becomes ten times slower in mid-run, and recovers; another learner is cut off for two minutes.

    python benchmarks/adapt.py [--phase-s 60] [--cut-s 120] [--skip-cut] [--run-dir runs/adapt] [--json]

Real runs on a local Ray, of four learners that step and perturb a model of 4 MB; all but the links is production's. A
link is made slow here, in the learner: an answer to a read leaves only after the time that its bytes take.
`throttled`: `sync.adaptive`; of the phases before, during and after, the steps per second of the other learners, the
share of commits that the slow one takes part in, and each change of its link. Beside them the same without adaptivity.
`cut`: `sync.base_window = 8`, adopt = rebase: the share of the steps that a learner took while it was cut off which
merged, and the held-out loss of the syncer's parameters at the end, against the same run without a cut.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh import emptied  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.accounting.verdicts import NOT_FAILED  # noqa: E402
from orchestrator.eventlog import reader  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.facts import Evaluated, FaultHealed, FaultInjected  # noqa: E402
from orchestrator.recipe.config import FaultConfig, Recipe  # noqa: E402
from orchestrator.recipe.toml_text import dump  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from orchestrator.store.readers import RECIPE_FILE  # noqa: E402
from orchestrator.store.run_store import RunStore  # noqa: E402
from outer.protocol.facts import Committed, LinkAdapted, ReadFailed, Refused  # noqa: E402

VICTIM = "learner-local-0"
STEP_S = 0.25
LAYERS, WIDTH, ROWS = 4, 256, 1024  # 4 MB in float32
FRAGMENTS = ROUND = 4
FAST, SLOW = 20e6, 2e6  # bytes a second of the victim's uplink
WARM_UP_S = 20.0


class Steady:
    """Matrices that are pulled towards a random target, in steps of STEP_S. Implements Task."""

    def __init__(self, data: Any, seed: int, links: str = "") -> None:
        """`links`: a folder. While it holds a file `slow`, the victim's uplink is slow."""
        self._seed = seed
        if links:
            _slow_down(Path(links))

    def init(self, rng: Any) -> dict[str, Any]:
        import jax.numpy as jnp

        return {f"layer{number}": jnp.zeros((ROWS, WIDTH), jnp.float32) for number in range(LAYERS)}

    def loss(self, params: Mapping[str, Any], batch: Any, rng: Any) -> tuple[Any, dict[str, Any]]:
        import jax.numpy as jnp

        wanted = jnp.mean(batch["x"], axis=0)
        return sum(jnp.mean(jnp.square(matrix - wanted)) for matrix in params.values()) / len(params), {}

    def optimizer(self, inner: Any) -> Any:
        import optax

        return optax.sgd(inner.lr)

    def batch(self, start: int, count: int) -> dict[str, Any]:
        import numpy as np

        drawn = np.random.default_rng([self._seed, start])
        return {"x": 1.0 + 0.3 * drawn.standard_normal((count, 1, WIDTH), np.float32)}

    def tokens(self, count: int) -> int:
        return count

    def held_out(self, start: int, count: int) -> dict[str, Any]:
        return self.batch(10**9 + start, count)


def _slow_down(folder: Path) -> None:
    """In the victim's process, let answers to reads leave as slowly as its link carries them."""
    from learners.shell import LearnerShell

    plain = LearnerShell.read
    if getattr(plain, "slowed", False):
        return

    def read(self: LearnerShell, request: Any) -> Any:
        answer = plain(self, request)
        if self._spec.name == VICTIM and not isinstance(answer, str):
            time.sleep(answer[0].payload.nbytes / (SLOW if (folder / "slow").exists() else FAST))
        return answer

    read.slowed = True  # type: ignore[attr-defined]
    LearnerShell.read = read  # type: ignore[method-assign]


def recipe(sync: dict[str, Any], links: Path | None, faults: tuple[FaultConfig, ...] = ()) -> Recipe:
    given = {"P": FRAGMENTS, "H": ROUND, "tau": 2, "quorum": 1, "lease_s": 15.0} | sync
    return resolve(
        Recipe.model_validate(
            {
                "name": "adapt",
                "task": "benchmarks.adapt:Steady",
                "model": {"links": str(links)} if links else {},
                "inner": {"optimizer": "sgd", "lr": 20.0, "clip_norm": 0.0, "schedule": "constant", "warmup": 0.0},
                "sync": given,
                "pools": [{"name": "local", "learners": 4, "batch_size": 2, "slowdown": 170.0}],
                "budget": {"tokens": 10**9},
                "eval": {"every": 0, "sequences": 16},
                "chaos": {"faults": [fault.model_dump() for fault in faults]},
                "run": {"metrics": False, "hang_s": 120.0, "start_s": 180.0},
            }
        )
    )


class Phases:
    """Called with every status: slows the link for the second of three phases, then ends the run."""

    def __init__(self, store: RunStore, folder: Path, phase_s: float) -> None:
        self._store, self._folder, self._phase_s = store, folder, phase_s
        self._began = 0.0
        self.times: list[float] = []  # Unix seconds: when each phase began, and the last ended

    def __call__(self, status: Mapping[str, Any]) -> None:
        now = time.time()
        if not self._began and status["run"]["syncer_step"] >= 2 * ROUND:
            self._began = now + WARM_UP_S
        phase = (now - self._began) / self._phase_s if self._began else -1.0
        if phase < len(self.times):
            return
        self.times.append(now)
        slow = self._folder / "slow"
        if len(self.times) == 2:
            slow.touch()
        elif len(self.times) == 3:
            slow.unlink()
        elif len(self.times) == 4:
            self._store.write_json("stop", {"reason": "all phases are over"})


def throttled(run_dir: Path, phase_s: float, adaptive: bool) -> dict[str, Any]:
    store = emptied(run_dir)
    links = run_dir.absolute() / "links"
    links.mkdir(parents=True)
    phases = Phases(store, links, phase_s)
    found = _run(recipe({"adaptive": adaptive}, links), store, phases)
    steps: list[Counter[str]] = [Counter() for _ in range(3)]
    commits, took_part = Counter[int](), Counter[int]()
    changes, failed = [], Counter[str]()
    for event in found["events"]:
        phase = sum(event.at >= at for at in phases.times) - 1
        if isinstance(event.fact, LinkAdapted):
            one = event.fact
            after_s = round(event.at - phases.times[0], 1) if phases.times else None
            changes.append({"after_s": after_s, "codec": one.codec, "every": one.every, "reason": one.reason})
        if not 0 <= phase < 3:
            continue
        match event.fact:
            case StepFinished() if event.writer != VICTIM:
                steps[phase][event.writer] += 1
            case Committed(participants=participants):
                commits[phase] += 1
                took_part[phase] += any(one.learner == VICTIM for one in participants)
            case ReadFailed(learner=name, reason=reason) if name == VICTIM:
                failed[f"{('before', 'slow', 'after')[phase]}: {reason}"] += 1
    lasted = [later - earlier for earlier, later in zip(phases.times, phases.times[1:], strict=False)]
    rates = [sum(each.values()) / 3 / seconds for each, seconds in zip(steps, lasted, strict=True)]
    return {
        "adaptive": adaptive,
        "steps_s_of_others": [round(rate, 3) for rate in rates],
        "slow_over_before": round(rates[1] / rates[0], 3),
        "commits_s": [round(commits[phase] / seconds, 2) for phase, seconds in enumerate(lasted)],
        "takes_part": [round(took_part[phase] / max(1, commits[phase]), 3) for phase in range(3)],
        "changes": changes,
        "reads_failed": dict(sorted(failed.items())),
        "checks_failed": found["failed"],
    }


def cut(run_dir: Path, cut_s: float) -> dict[str, Any]:
    """Twice the same run, with and without the cut; both end after as many committed syncer steps."""
    results: dict[str, Any] = {}
    # A round lasts as long as an eighth of the cut, so that the base window covers it.
    rounds = max(ROUND, round(cut_s / 7.0 / STEP_S))
    sync = {"H": rounds, "base_window": 8, "adopt": "rebase", "drain_s": 60.0}
    for name, lasts_s in (("cut", cut_s), ("whole", 0.0)):
        store = emptied(run_dir / name)
        faults = (FaultConfig(kind="link", learner=VICTIM, at_step=2 * rounds, duration_s=lasts_s),) if lasts_s else ()
        wanted = recipe(sync, None, faults)
        steps = 2 * rounds + round(cut_s / STEP_S) + 4 * rounds
        wanted = wanted.model_copy(
            update={"budget": wanted.budget.model_copy(update={"tokens": None, "syncer_steps": steps})}
        )
        found = _run(wanted, store, lambda status: None)
        told = {"checks_failed": found["failed"], "held_out_loss": _loss(found["events"])}
        results[name] = told | (_of_the_cut(found["events"]) if lasts_s else {})
    return results


def _of_the_cut(events: list[Event]) -> dict[str, Any]:
    """What became of the victim's steps: the share that merged, and what was refused."""
    begin = next(event.at for event in events if isinstance(event.fact, FaultInjected))
    end = next(event.at for event in events if isinstance(event.fact, FaultHealed))
    refused = Counter(
        event.fact.reason
        for event in events
        if isinstance(event.fact, Refused) and event.fact.learner == VICTIM and event.at >= begin
    )
    inside = [
        (event.incarnation, event.fact.step)
        for event in events
        if isinstance(event.fact, StepFinished) and event.writer == VICTIM and begin <= event.at < end
    ]
    covered = [set[tuple[int, int]]() for _ in range(FRAGMENTS)]
    for event in events:
        if isinstance(event.fact, Committed):
            for one in event.fact.participants:
                if one.learner == VICTIM:
                    steps = range(one.base_step + 1, one.step + 1)
                    covered[event.fact.fragment].update((one.incarnation, step) for step in steps)
    merged = sum(step in fragment for fragment in covered for step in inside)
    share = round(merged / (FRAGMENTS * len(inside)), 3) if inside else None
    return {"cut_s": round(end - begin, 1), "steps": len(inside), "merged_share": share, "refused": dict(refused)}


def _loss(events: Iterable[Event]) -> float | None:
    losses = [event.fact.loss for event in events if isinstance(event.fact, Evaluated)]
    return losses[-1] if losses else None


def _run(wanted: Recipe, store: RunStore, on_status: Any) -> dict[str, Any]:
    from orchestrator.__main__ import start_chaos
    from orchestrator.runtime.launch import run_embedded

    store.write_text(RECIPE_FILE, dump(wanted))
    summary = run_embedded(wanted, store, start_chaos, on_status)
    failed = [each["name"] for each in summary["checks"] if each["status"] not in NOT_FAILED]
    return {"events": list(reader.events(store.root)), "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase-s", type=float, default=60.0)
    parser.add_argument("--cut-s", type=float, default=120.0)
    parser.add_argument("--skip-cut", action="store_true")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/adapt"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 1)}
    for adaptive in (True, False):
        name = "adaptive" if adaptive else "plain"
        results[name] = throttled(given.run_dir / name, given.phase_s, adaptive)
    if not given.skip_cut:
        results["cut"] = cut(given.run_dir / "cut", given.cut_s)
    results["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(results) if given.json else json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
