"""Bytes that a learner's step with its fragment moves, on a real run for each number format, against data-parallel.

    python benchmarks/wire.py [--codecs fp32,bf16,int8,fp4] [--rounds 3] [--json]

Two learners on this machine, the format used both ways, P = H = 24: one fragment is due a step. Payloads are those in
the run's log, up for each merged contribution, down for each adoption but the first ones; headers are the messages
beside them for each learner step as Ray pickles them, without what Ray and TCP add. `synced`: merged contributions for
each learner step; learners that outrun the merges move less than is printed. Data-parallel training moves a gradient in
bf16 each way in every step: 2 bytes x parameters x 2. Below it, what `plan` says of 8 learners in 8 datacentres with
steps of a second, in Gbit/s of each learner each way; the paper has 0.84 with int4, of a model that it calls 5B.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ray import cloudpickle  # noqa: E402

from learners.protocol.facts import Adopted, StepFinished  # noqa: E402
from orchestrator.cli.errors import CHECK_FAILED  # noqa: E402
from orchestrator.eventlog.events import Event  # noqa: E402
from orchestrator.eventlog.reader import read_run  # noqa: E402
from orchestrator.planner.sizing.model_sizes import shapes_of  # noqa: E402
from orchestrator.planner.sizing.traffic import table, traffic  # noqa: E402
from orchestrator.recipe.config import Recipe  # noqa: E402
from orchestrator.recipe.validation import resolve  # noqa: E402
from outer.numeric.formats import named  # noqa: E402
from outer.protocol.facts import Committed, SyncerStarted  # noqa: E402
from outer.protocol.messages import Contribution, FragmentCounters, Notice, ReadRequest, Report  # noqa: E402

FRAGMENTS = 24
LEARNERS = 2
GRADIENT_BYTES = 2 * 2  # bf16, there and back
PLANNED = {"5B": (24, 4160), "12B": (38, 5120)}  # layers and width of a language model on bytes
PAPER_GBIT_S = 0.84
DIGEST = "0" * 32


def recipe(codec: str, rounds: int) -> dict[str, Any]:
    return {
        "name": f"wire-{codec}",
        "model": {"layers": 4, "width": 160, "heads": 4},
        "data": {"sequence_length": 16},
        "sync": {"P": FRAGMENTS, "H": FRAGMENTS, "tau": 2, "quorum": "all", "codec": codec, "downlink": codec},
        "pools": [{"name": "t", "learners": LEARNERS, "batch_size": 1, "slowdown": 8.0}],
        "budget": {"syncer_steps": rounds * FRAGMENTS},
        "eval": {"every": 0, "sequences": 2},
        "run": {"metrics": False},
    }


def ran(codec: str, rounds: int) -> list[Event]:
    """The log of a run of its own."""
    with tempfile.TemporaryDirectory(prefix="diloco-wire-") as folder:
        path = Path(folder, "recipe.toml")
        path.write_text(tomli_w.dumps(recipe(codec, rounds)))
        command = [sys.executable, "-m", "orchestrator", "run", str(path), "--run-dir", f"{folder}/run", "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in (0, CHECK_FAILED):  # bytes count on a busy machine, too
            raise SystemExit(done.stderr + done.stdout)
        return read_run(Path(folder, "run"))


def pickled(*things: Any) -> int:
    return sum(len(cloudpickle.dumps(thing)) for thing in things)


def measure(codec: str, events: Sequence[Event]) -> dict[str, Any]:
    """Bytes per learner step in which a fragment is due."""
    facts = [event.fact for event in events]
    sizes = next(fact.sizes for fact in facts if isinstance(fact, SyncerStarted))
    steps = [event for event in events if isinstance(event.fact, StepFinished)]
    commits = [fact for fact in facts if isinstance(fact, Committed)]
    adopted = [fact for fact in facts if isinstance(fact, Adopted) and fact.mode != "bootstrap"]
    parts = sum(len(commit.participants) for commit in commits)
    up = sum(named(codec).bytes(sizes[commit.fragment]) * len(commit.participants) for commit in commits)
    counters = FragmentCounters(1000, 1000, 10, 1000)
    report = Report("learner-t-0", 1, 1, 1000, "stepping", 3.0, 1000, 0.1, 10**6, 1000, (counters,) * FRAGMENTS)
    answer = Contribution("learner-t-0", 1, 1, 1000, 3, 1, 1000, 10**6, counters, None, DIGEST)
    said = [event for event in events if event.writer.startswith("learner")]
    headers_up = (
        len(steps) * pickled(report) + parts * pickled(answer) + pickled(*((e.sequence, e.at, e.fact) for e in said))
    )
    request, notice = ReadRequest(1, 1000, 3, 1, 1000, 2.0, 0.5), Notice(1, 1000, 3, 1000, DIGEST, 0.5)
    fetched = pickled((1000, DIGEST, None, 0))
    headers_down = parts * pickled(request) + len(commits) * LEARNERS * pickled(notice) + len(adopted) * fetched
    moved = [up / parts, sum(fact.bytes for fact in adopted) / len(adopted)]
    headers = [headers_up / len(steps), headers_down / len(steps)]
    parallel = GRADIENT_BYTES * sum(sizes)
    return {
        "codec": codec,
        "parameters": sum(sizes),
        "learner_steps": len(steps),
        "synced": round(parts / len(steps), 3),
        "up": round(moved[0]),
        "down": round(moved[1]),
        "headers_up": round(headers[0]),
        "headers_down": round(headers[1]),
        "data_parallel": parallel,
        "times_less": round(parallel / sum(moved), 1),
        "times_less_with_headers": round(parallel / (sum(moved) + sum(headers)), 1),
    }


def planned(codec: str) -> dict[str, Any]:
    """What `plan` says of each model, in Gbit/s of one learner."""
    found: dict[str, Any] = {"codec": codec, "paper": PAPER_GBIT_S}
    for name, (layers, width) in PLANNED.items():
        plain = recipe(codec, 100) | {"model": {"layers": layers, "width": width, "heads": 32}}
        plain["pools"] = [{"name": f"dc{n}", "region": f"dc{n}"} for n in range(8)]
        wanted = resolve(Recipe.model_validate(plain))
        shapes, regions = shapes_of(wanted), {learner: pool.region for learner, pool in wanted.learners.items()}
        state = shapes.parameter_bytes, shapes.inner_state_bytes
        moved = traffic(table(shapes.fragments, wanted.sync), wanted.sync, regions, "dc0", 2400, *state, 1.0)
        found |= {
            f"{name}_parameters": shapes.elements,
            f"{name}_up_gbit_s": round((moved.learner_up.per_second_bits or 0.0) / 1e9, 3),
            f"{name}_down_gbit_s": round((moved.learner_down.per_second_bits or 0.0) / 1e9, 3),
        }
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    names = list(rows[0])
    print("| " + " | ".join(name.replace("_", " ") for name in names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print(
            "| " + " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()) + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", default="fp32,bf16,int8,fp4", help="for both directions, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="of every run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    codecs = options.codecs.split(",")
    rows, plans = [measure(codec, ran(codec, options.rounds)) for codec in codecs], [planned(codec) for codec in codecs]
    if options.json:
        print(json.dumps({"runs": rows, "plans": plans}))
        return
    show(rows)
    print()
    show(plans)


if __name__ == "__main__":
    main()
