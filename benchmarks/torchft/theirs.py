"""A trial with torchft: a lighthouse and two replica groups of one process each, and a SIGKILL."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.torchft.processes import Processes, ended
from benchmarks.torchft.trial import AFTER_S, BEFORE_S, LEARNER, RESTARTED, Trial, trial

HERE = Path(__file__).resolve().parent
LEARNERS = ("learner-0", "learner-1")
START_S = 120.0
SETTLE_S = 3.0
RESTART_S = 1.0  # a killed lighthouse is away for so long


@dataclass(frozen=True)
class System:
    """A way to use torchft; what is left out has torchft's default."""

    name: str
    algorithm: str  # diloco | ddp
    lighthouse_ms: dict[str, int] = field(default_factory=dict)
    manager_s: dict[str, float] = field(default_factory=dict)
    quorum_retries: int = 0


# A quorum that failed is asked for again after quorum_timeout / (quorum_retries + 1), of which the first is 60 s.
TUNED: dict[str, Any] = {
    "lighthouse_ms": {"heartbeat_timeout_ms": 250, "join_timeout_ms": 250, "quorum_tick_ms": 20},
    "manager_s": {"timeout": 2.0, "connect_timeout": 0.5, "heartbeat_interval": 0.02},
    "quorum_retries": 200,
}
SYSTEMS = (
    System("torchft DiLoCo", "diloco"),
    System("torchft DiLoCo, tuned", "diloco", **TUNED),
    System("torchft DDP", "ddp"),
    System("torchft DDP, tuned", "ddp", **TUNED),
)


def run(system: System, killed: str, model: dict[str, Any], python: Path, folder: Path) -> Trial:
    """`model`: what both sides share, see recipe.toml. The killed replica group is started again at once."""
    with Processes(folder) as processes:
        port = _free_port()
        lighthouse = _lighthouse(processes, system, python, port)
        settings = model | {
            "algorithm": system.algorithm,
            "lighthouse": f"http://localhost:{port}",
            "manager_s": system.manager_s,
            "quorum_retries": system.quorum_retries,
        }
        lives = {name: _trainer(processes, python, settings, name) for name in LEARNERS}
        outs = {name: folder / f"{name}-1.out" for name in LEARNERS}
        processes.wait_for("commit of two", lambda: all(map(_both, outs.values())), START_S)
        time.sleep(SETTLE_S + BEFORE_S)
        at = time.time()
        if killed == LEARNER:
            lives.pop(LEARNERS[1]).kill()
            _trainer(processes, python, settings, LEARNERS[1], life=2)
            outs["next life"] = folder / f"{LEARNERS[1]}-2.out"
        else:
            lighthouse.kill()
            lighthouse.wait()
            if killed == RESTARTED:
                time.sleep(RESTART_S)
                _lighthouse(processes, system, python, port, life=2)
        ends = ended(lives, at, AFTER_S[killed])
    lines = {name: _lines(out) for name, out in outs.items()}
    steps = {name: [line["at"] for line in lines[name]] for name in lives}
    commits = _commits(lines[LEARNERS[0]])
    back = next(iter(_commits(lines.get("next life", []), together=True)), None)
    return trial(system.name, killed, at, steps, commits, back, ends)


def _lighthouse(
    processes: Processes, system: System, python: Path, port: int, life: int = 1
) -> subprocess.Popen[bytes]:
    command = [str(python.parent / "torchft_lighthouse"), "--min_replicas=1", f"--bind=[::]:{port}"]
    command += [f"--{key}={value}" for key, value in system.lighthouse_ms.items()]
    return processes.start(f"lighthouse-{life}", command)


def _trainer(
    processes: Processes, python: Path, settings: dict[str, Any], name: str, life: int = 1
) -> subprocess.Popen[bytes]:
    """Its samples are other ones in every life."""
    own = settings | {"name": name, "seed": LEARNERS.index(name) + len(LEARNERS) * life}
    return processes.start(f"{name}-{life}", [str(python), str(HERE / "trainer.py"), json.dumps(own)])


def _lines(out: Path) -> list[dict[str, Any]]:
    """All whole lines: a killed process may leave a part of one."""
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]]


def _both(out: Path) -> bool:
    return bool(_commits(_lines(out), together=True))


def _commits(lines: list[dict[str, Any]], together: bool = False) -> list[float]:
    """When torchft's step rose while it trained; `together`: with both replica groups in it.

    The first line is left out: a joiner's first number is that of its donor.
    """
    return [
        line["at"]
        for before, line in itertools.pairwise(lines)
        if line["commits"] > before["commits"] and (line["participants"] == len(LEARNERS) or not together)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
