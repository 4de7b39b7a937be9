"""One model over regions of one machine, joined by a wide-area network in user space: what slow and bad links cost.

    python benchmarks/regions.py [--mbit 50] [--tau 8] [--set sync.codec=bf16] [--json]
    python benchmarks/regions.py --objects           # each region a Ray cluster of its own; they share a door alone
    python benchmarks/regions.py --cut 30            # one region cannot be reached for 30 s; --cut-region a: that one
    python benchmarks/regions.py --bad-loss 2        # percent of the packets on one link
    python benchmarks/regions.py --bad-mbit 2        # one link has so little

A learner in each of four regions, 1.8 million parameters, steps of 0.13 s that are mostly a wait, so that two cores are
enough. The first region has the head and the syncer; its learner crosses no link and is what the others are compared
with. Needs root and what `benchmarks/wan/wan.py up` names. One Ray cluster spans the regions, as deploy/clusters
starts it; it has a token, ports and temporary folders of its own. With --objects the first region has the door.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.wan import wan  # noqa: E402
from learners.protocol.facts import StepFinished  # noqa: E402
from orchestrator.eventlog.facts import LearnerLost  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from outer.protocol.facts import Committed, ReadFailed  # noqa: E402

REGIONS = ("a", "b", "c", "d")
CUT_AT, HEAL_S = 0.3, 20.0  # share of the steps before the cut; to watch after it
BEGIN_S, LIMIT_S = 300.0, 900.0
RECIPE = """
name = "regions"
task = "learners.training.models.causal_lm:CausalLM"
model = { layers = 4, width = 192 }
data = { sequence_length = 64 }
sync = { P = 24, H = 24, tau = 8, quorum = 1 }
budget = { syncer_steps = STEPS }
eval = { every = 1000, sequences = 16 }
run = { metrics = false, control = { region = "a" } }
"""
POOL = (
    '[[pools]]\nname = "{0}"\nregion = "{0}"\nlearners = 1\nbatch_size = 2\nslowdown = {1}\nresources = {{ CPU = 1 }}\n'
)


class Rig:
    """The network, and Ray in it. Its folder is seen in every region."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self._options = folder, options
        self._token = folder / "token"
        self._token.write_text(secrets.token_hex(32))
        self._token.chmod(0o600)

    def __enter__(self) -> Rig:
        shares = [str(each) for each in (self.folder, ROOT) if str(each).startswith("/tmp/")]
        command = ["up", *REGIONS, "--mbit", str(self._options.mbit), "--rtt", str(self._options.rtt)]
        command += ["--loss", str(self._options.loss), *(word for each in shares for word in ("--share", each))]
        self.wan(*command)
        self.bad(self._options)
        self.serve()
        return self

    def serve(self) -> None:
        """Start what a run needs."""
        ray = str(Path(sys.executable).with_name("ray"))
        words = ["bash", str(ROOT / "benchmarks/wan/ray_nodes.sh"), ray, str(self._token), *REGIONS]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=self.environment)

    def __exit__(self, *_: object) -> None:
        self.wan("down")

    @property
    def environment(self) -> dict[str, str]:
        one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._token), "XLA_FLAGS": one_thread}
        return {**os.environ, **ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    @staticmethod
    def wan(*words: str) -> None:
        program = [sys.executable, str(ROOT / "benchmarks/wan/wan.py"), *words]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the first region."""
        program = [sys.executable, str(ROOT / "benchmarks/wan/wan.py"), "exec", REGIONS[0], "--", *words]
        return subprocess.run(program, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def beside(self, region: str, name: str, *words: str, **more: str) -> None:
        """Run a command of ours in a region, in the background; its output is NAME.log in the folder."""
        wan = [
            sys.executable,
            str(ROOT / "benchmarks/wan/wan.py"),
            "exec",
            "--detach",
            str(self.folder / f"{name}.log"),
        ]
        environment = self.environment | more
        subprocess.run([*wan, region, "--", *words], env=environment, check=True, stdout=subprocess.DEVNULL)

    def bad(self, options: argparse.Namespace) -> None:
        """Make the link of the last region what the options say."""
        words = [*(("--mbit", str(options.bad_mbit)) if options.bad_mbit else ())]
        words += [*(("--loss", str(options.bad_loss)) if options.bad_loss else ())]
        if words:
            self.wan("link", REGIONS[0], REGIONS[-1], *words)

    def submit(self, recipe: Path, run: Path, settings: list[str]) -> None:
        """Submit the run once every region has joined. Raises SystemExit."""
        diloco, more = [sys.executable, "-m", "orchestrator"], [word for each in settings for word in ("--set", each)]
        where = [
            "--address",
            "http://127.0.0.1:8265",
            "--set",
            f"run.folder={run.as_uri()}",
            "--working-dir",
            str(recipe.parent),
        ]
        give_up_at = time.monotonic() + 180.0
        while True:
            done = self.inside(*diloco, "plan", str(recipe), *more, "--address", "10.77.1.1:6379")
            if done.returncode == 0:
                done = self.inside(*diloco, "submit", str(recipe), *more, *where, "--no-wait")
                if done.returncode == 0:
                    return
            if time.monotonic() > give_up_at:
                raise SystemExit(f"error: the cluster takes no run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            time.sleep(2.0)


class Clusters(Rig):
    """Regions that share nothing but a door in the first."""

    def serve(self) -> None:
        own = [sys.executable, "-m", "orchestrator"]
        log = self.folder / "door.log"
        self.beside(
            REGIONS[0], "door", *own, "door", str(self.folder / "store"), "--host", "10.77.1.1", "--port", "7443"
        )
        give_up_at = time.monotonic() + 60.0
        while not log.exists() or "https://" not in log.read_text():
            if time.monotonic() > give_up_at:
                raise SystemExit(f"error: the door does not open: {log.read_text()}")
            time.sleep(0.2)

    def submit(self, recipe: Path, run: Path, settings: list[str]) -> None:
        own, store = [sys.executable, "-m", "orchestrator"], "https://10.77.1.1:7443/run"
        for region in (*REGIONS[1:], "control"):
            line = self.inside(*own, "invite", region, str(self.folder / "store")).stdout.splitlines()[-1]
            token = dict([line.removeprefix("export ").split("=", 1)])
            if region != "control":
                self.beside(region, region, *own, "join", store, "--region", region, "--wait", "120", **token)
                continue
            more = [f"run.folder={run}", f"durability.store={store}", *settings]
            words = [word for each in more for word in ("--set", each)]
            self.beside(REGIONS[0], "run", *own, "run", str(recipe), *words, **token)


def follow(rig: Rig, run: Path, options: argparse.Namespace) -> dict[str, float]:
    """Wait for the end of the run, and cut a region off on the way. Returns when that was, in Unix seconds."""
    told: dict[str, float] = {}
    give_up_at = time.monotonic() + LIMIT_S + options.cut
    while not (run / "summary.json").exists():
        if time.monotonic() > give_up_at - (0.0 if told else LIMIT_S - BEGIN_S):
            logs = "".join(f"== {each.name}\n{each.read_text()[-1500:]}" for each in sorted(run.parent.glob("*.log")))
            raise SystemExit(f"error: the run does not {'end' if told else 'begin'}\n{logs}")
        time.sleep(0.5)
        try:
            status = json.loads((run / "status.json").read_text())
        except (OSError, ValueError):
            continue
        if "began" not in told and status["learners"] and all(each["step"] for each in status["learners"]):
            told["began"] = time.time()
            told |= {f"bytes {a}{b}": float(each["bytes"]) for (a, b), each in wan.counters()[0].items()}
        if options.cut and "began" in told and "cut" not in told and status["run"]["progress"] >= CUT_AT:
            told["cut"] = time.time()
            rig.wan("isolate", options.cut_region)
        if "cut" in told and "healed" not in told and time.time() >= told["cut"] + options.cut:
            rig.wan("join", options.cut_region)
            told["healed"] = time.time()
    return told


def measure(run: Path, told: Mapping[str, float], options: argparse.Namespace) -> dict[str, Any]:
    events = read_run(run.parent / "store" / "run" if options.objects else run)
    summary = json.loads((run / "summary.json").read_text())
    since = told.get("began", 0.0)
    commits = [event for event in events if isinstance(event.fact, Committed) and event.at >= since]
    until = commits[-1].at if commits else since
    if not since or until - since < 10.0:
        raise SystemExit("error: all learners stepped for less than 10 s: give more --steps")
    links = {pair: each["bytes"] for pair, each in wan.counters()[0].items()}
    rows = {}
    for region in REGIONS:
        name = f"learner-{region}-0"
        steps = [e for e in events if isinstance(e.fact, StepFinished) and e.writer == name and since <= e.at <= until]
        parts = [p for e in commits for p in e.fact.participants if p.learner == name]
        failed = [e for e in events if isinstance(e.fact, ReadFailed) and e.fact.learner == name]
        lost = [e for e in events if isinstance(e.fact, LearnerLost) and e.fact.learner == name]
        rows[region] = {
            "steps_per_s": len(steps) / (until - since),
            "waited_s": sum(event.fact.waited_s for event in steps),
            "round_steps": summary["round_steps"]["by_learner"].get(name),
            "participation": len(parts) / len(commits),
            "steps_each": sum(part.steps for part in parts) / max(1, len(parts)),
            "failed_reads": len(failed),
            "lost": [event.fact.cause for event in lost],
        }
        for way, pair in (("up", (region, REGIONS[0])), ("down", (REGIONS[0], region))):
            if pair in links:
                sent = links[pair] - told["bytes " + "".join(pair)]
                rows[region][f"{way}_mbit"] = sent * 8e-6 / (until - since)
        if "healed" in told:
            again = [
                e.at for e in commits if e.at > told["healed"] and any(p.learner == name for p in e.fact.participants)
            ]
            rows[region]["merged_again_s"] = again[0] - told["healed"] if again else None
    return {
        "mbit": options.mbit, "rtt_ms": options.rtt, "loss": options.loss, "tau": options.tau, "set": options.set,
        "objects": options.objects,
        "bad": {"cut_s": options.cut, "region": options.cut_region, "loss": options.bad_loss, "mbit": options.bad_mbit},
        "seconds": until - since, "commits_per_s": len(commits) / (until - since),
        "round_steps_asked": summary["round_steps"]["asked"], "regions": rows, "ok": summary["ok"],
        "tokens": summary["tokens"], "eval_loss": summary["eval_loss"],
    }  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mbit", type=float, default=50.0, help="of each link, each way")
    arguments.add_argument("--rtt", type=float, default=60.0, help="milliseconds")
    arguments.add_argument("--loss", type=float, default=0.0, help="percent")
    arguments.add_argument("--tau", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=480, help="syncer steps")
    arguments.add_argument("--slowdown", type=float, default=5.0, help="makes steps about 0.13 s long")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    arguments.add_argument("--objects", action="store_true", help="a Ray cluster in each region, and a door")
    arguments.add_argument("--cut", type=float, default=0.0, help="seconds for which a region is cut off")
    arguments.add_argument("--cut-region", choices=REGIONS, default=REGIONS[-1])
    arguments.add_argument("--bad-loss", type=float, default=0.0, help="percent, on the last region's link")
    arguments.add_argument("--bad-mbit", type=float, default=0.0, help="of the last region's link")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    if lacks := wan.lacking():
        raise SystemExit("error: this machine lacks " + "; ".join(lacks))
    folder = Path(tempfile.mkdtemp(prefix="diloco-regions-", dir="/tmp"))
    try:
        (folder / "job").mkdir()
        recipe, run = folder / "job" / "recipe.toml", folder / "run"
        pools = "".join(POOL.format(region, options.slowdown) for region in REGIONS)
        if options.objects:
            pools = pools.replace("[[pools]]", "[[pools]]\njoined = true").replace("joined = true\n", "", 1)
        recipe.write_text(RECIPE.replace("STEPS", str(options.steps)) + pools)
        with (Clusters if options.objects else Rig)(folder, options) as rig:
            rig.submit(recipe, run, [f"sync.tau={options.tau}", *options.set])
            report = measure(run, follow(rig, run, options), options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['seconds']:.0f} s, {report['commits_per_s']:.2f} commits/s, checks ok: {report['ok']}")
    own = report["regions"][REGIONS[0]]["steps_per_s"]
    for region, row in report["regions"].items():
        told = [
            f"{region}: {row['steps_per_s']:.2f} steps/s ({row['steps_per_s'] / own:.3f})",
            f"waited {row['waited_s']:.1f} s",
            f"{row['round_steps'] or 0:.1f} inner steps a round ({report['round_steps_asked']} asked for)",
            f"in {row['participation']:.0%} of commits, with {row['steps_each']:.1f} steps",
            f"{row['failed_reads']} reads failed",
            f"lost {row['lost'] or 'never'}",
            f"{row.get('up_mbit', 0.0):.1f} Mbit/s up, {row.get('down_mbit', 0.0):.1f} down",
        ]
        if (again := row.get("merged_again_s")) is not None:
            told.append(f"merged {again:.1f} s after the cut")
        print(", ".join(told))


if __name__ == "__main__":
    main()
