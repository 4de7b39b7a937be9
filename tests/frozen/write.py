"""Writes the frozen runs: small run folders, and what checks and summary say of each.

    python -m tests.frozen.write                    # everything anew: real runs, simulated ones, planted bugs, seeds
    python -m tests.frozen.write real/plain         # only these
    python -m tests.frozen.write --expected         # only what is said of the folders, which stay as they are

A change that alters what is said of a folder says why in its commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.whole_log import write_log
from chaos.simulation.cluster import Cluster, Outcome, simulate
from chaos.simulation.profile import draw
from orchestrator.analysis.database import connect
from orchestrator.analysis.folder import check_run
from orchestrator.analysis.summary import summarise
from orchestrator.eventlog.reader import SEAL_FILE, LogReader, seal
from orchestrator.simulation import log
from outer.journal.object_store import Folder
from tests.simulation.catching import recorded
from tests.simulation.mutants import MUTANTS

HERE = Path(__file__).parent
FOLDERS, EXPECTED, SEEDS = HERE / "folders", HERE / "expected", HERE / "seeds.json"
KEPT = ("config.toml", SEAL_FILE, "log")  # of a real run's folder
REPLAYED = "real/replay"  # which is computed again
SEED_COUNT = 24
SIMULATED_STEPS = 60
WAIT_S = 600.0

RECIPE: dict[str, Any] = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "data.sequence_length": 16,
    "sync.P": 4,
    "sync.H": 4,
    "sync.quorum": 2,
    "budget.syncer_steps": 100,
    "eval.every": 20,
    "eval.sequences": 8,
    "run.start_s": 600.0,
    "run.hang_s": 60.0,
    "run.metrics": False,
}
TOML = 'name = "{name}"\n[[pools]]\nname = "t"\nlearners = {learners}\nbatch_size = 2\nslowdown = {slowdown}\n{more}'


def fault(kind: str, learner: str, at_step: int, more: str = "") -> str:
    return f'\n[[chaos.faults]]\nkind = "{kind}"\nlearner = "{learner}"\nat_step = {at_step}\n{more}\n'


A, B, C = (f"learner-t-{index}" for index in range(3))
LEARNER_FAULTS = fault("kill", B, 25) + fault("freeze", C, 50, "duration_s = 5.0")
SYNCER_FAULTS = fault("kill", "syncer", 25) + fault("kill", "syncer", 50, 'point = "journaled"')
REAL: dict[str, tuple[int, float, str, dict[str, Any]]] = {  # learners, slowdown, more of the recipe, settings
    "plain": (3, 20.0, "", {}),
    "kills": (3, 20.0, LEARNER_FAULTS, {}),
    "syncer": (3, 20.0, SYNCER_FAULTS, {}),
    "resumed": (3, 20.0, "", {"durability.every_s": 2.0}),
    "shards": (3, 20.0, SYNCER_FAULTS, {"run.shards": 2, "sync.downlink": "int8", "sync.codec": "bf16"}),
    "island": (2, 20.0, "processes = 2\n" + fault("kill", f"{B}/1", 40), {"sync.quorum": 1}),
    "late": (
        3,
        20.0,
        fault("straggle", C, 20, "duration_s = 15.0\ndelay_s = 1.0"),
        {"sync.base_window": 2, "sync.read_timeout_s": 0.3},
    ),
    "adaptive": (3, 20.0, fault("link", B, 20, "duration_s = 5.0"), {"sync.adaptive": True}),
    "corrupt": (3, 20.0, fault("corrupt", B, 20) + fault("non_finite", C, 50), {}),
    "replay": (3, 20.0, fault("kill", B, 30), {"sync.codec": "int8", "sync.downlink": "bf16", "sync.adopt": "rebase"}),
}

# Of the planted bugs, a few that together break every check that any of them breaks.
PLANTED = (
    "a-round-too-many", "change-of-format-untold", "does-not-reattach", "incarnation-unchecked-at-attach",
    "kept-over-reopening", "last-commit-not-recovered", "overflow-committed", "record-written-twice",
    "silenced-by-a-deposed-epoch", "weights-by-tokens",
)  # fmt: skip
SIMULATED = ("mixed", "islands", "regions", "standbys", "storage", "sessions")  # profiles


# ------------------------------------------------------------------ folders


def write_real(name: str) -> None:
    """Train for some twenty seconds in processes of its own, and keep what the checks need of the folder."""
    learners, slowdown, more, settings = REAL[name]
    with tempfile.TemporaryDirectory(prefix="diloco-frozen-") as scratch:
        recipe, folder = Path(scratch) / "recipe.toml", Path(scratch) / name
        recipe.write_text(TOML.format(name=name, learners=learners, slowdown=slowdown, more=more))
        overrides = [word for item in (RECIPE | settings).items() for word in ("--set", "{}={}".format(*item).lower())]
        overrides = [word.replace("sync.p=", "sync.P=").replace("sync.h=", "sync.H=") for word in overrides]
        command = [
            sys.executable,
            "-m",
            "orchestrator",
            "run",
            str(recipe),
            "--set",
            f"run.folder={folder}",
            *overrides,
        ]
        if name == "resumed":
            _interrupted(command, folder)
        subprocess.run(command, check=True, env=os.environ | {"RAY_ADDRESS": ""})
        kept = FOLDERS / "real" / name
        shutil.rmtree(kept, ignore_errors=True)
        for entry in KEPT:
            copy = shutil.copytree if (folder / entry).is_dir() else shutil.copy
            kept.mkdir(parents=True, exist_ok=True)
            copy(folder / entry, kept / entry)


def _interrupted(command: list[str], folder: Path) -> None:
    """Run until a third is done, then interrupt as Ctrl-C does."""
    process = subprocess.Popen(command, env=os.environ | {"RAY_ADDRESS": ""})
    give_up_at = time.monotonic() + WAIT_S
    while _syncer_step(folder) < 35:
        assert process.poll() is None and time.monotonic() < give_up_at
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.wait(WAIT_S)


def _syncer_step(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads((folder / "status.json").read_text())["run"]["syncer_step"])
    return 0


def write_simulated(seed: int, profile: str, syncer_steps: int, folder: Path) -> None:
    """The log of a simulated run, which may fail on the way where a bug is planted."""
    cluster = Cluster(draw(seed, profile, syncer_steps=syncer_steps))
    with contextlib.suppress(Exception):
        cluster.run()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cluster.store.heal()
    events, _ = log.read(cluster.context)
    cluster.context.time.close()
    ends = write_log(Folder(folder), events)
    (folder / SEAL_FILE).write_text(json.dumps(seal(ends)))


def folders() -> dict[str, Callable[[], None]]:
    """By name, what writes each folder."""
    made: dict[str, Callable[[], None]] = {f"real/{name}": lambda name=name: write_real(name) for name in REAL}
    for profile in SIMULATED:
        place = FOLDERS / "simulated" / profile
        made[f"simulated/{profile}"] = lambda p=profile, f=place: write_simulated(1, p, SIMULATED_STEPS, f)
    catches = recorded()
    for name in PLANTED:

        def planted(name: str = name, catch: Any = catches[name]) -> None:
            with MUTANTS[name].planted():
                write_simulated(catch.seed, catch.profile, catch.syncer_steps, FOLDERS / "planted" / name)

        made[f"planted/{name}"] = planted
    return made


# ------------------------------------------------------------------ what is said of them


def said_of(folder: Path) -> dict[str, Any]:
    """Verdicts by check, and the figures of the summary without the verdicts, which it repeats."""
    verdicts = check_run(folder)
    recipe = folder / "config.toml"
    plain = tomllib.loads(recipe.read_text()) if recipe.exists() else {}
    summary = summarise(LogReader(folder).rest(), plain, verdicts)
    del summary["checks"]
    return {"verdicts": {verdict.name: verdict.status for verdict in verdicts}, "summary": rounded(summary)}


def rounded(value: Any) -> Any:
    """Numbers to a millionth: the last bits of sums of seconds are the database's affair."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def written(folder: str) -> dict[str, Any]:
    """What was said of a folder when it was frozen."""
    return dict(json.loads((EXPECTED / f"{folder}.json").read_text()))


def say(names: Iterable[str]) -> None:
    for name in names:
        path = EXPECTED / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(said_of(FOLDERS / name), indent=1, sort_keys=True) + "\n")


def played(seeds: Iterable[int]) -> list[Outcome]:
    database = connect()
    return [simulate(seed, used=database) for seed in seeds]


def digests(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """By seed, a digest of the whole history."""
    return {str(each.seed): each.digest[:16] for each in outcomes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="such as real/plain, simulated/calm, planted/stop-ignored, seeds")
    parser.add_argument("--expected", action="store_true", help="leave the folders as they are")
    options = parser.parse_args()
    made = folders()
    chosen = options.names or [*made, "seeds"]
    for name in chosen:
        print(name, flush=True)
        if name == "seeds":
            SEEDS.write_text(json.dumps(digests(played(range(1, SEED_COUNT + 1))), indent=0) + "\n")
            continue
        if not options.expected:
            made[name]()
        say([name])


if __name__ == "__main__":
    main()
