"""What do the number formats cost, and what do they lose?

    python benchmarks/codecs.py [--codecs int8 fp4 ...] [--repeats 5] [--json]
    python benchmarks/codecs.py --loss [--seeds 5] [--rounds 100] [--key sync.codec sync.downlink] [--set KEY=VALUE ...]

The first measures one core on 32 MB of float32, an outer gradient as Adam makes it: magnitudes differ by row.
`encode_gb_s`, `decode_gb_s` and `check_gb_s`: GB of float32 in a second of the core; `factor`: by how much smaller the
payload is; `error`: the L2 norm of what is lost over that of the whole; `of_bound`: the largest error over its bound.

`--loss` trains the demonstration's recipe with each format by `diloco study`, at equal tokens and over the same seeds,
and prints held-out losses, `more_percent`: the mean difference from the first format, fp32, in percent of its loss,
and `interval`: half of Student's 95 % interval of it, from two seeds on. `--key`: the settings that the format's
name is for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.recipe.toml_text import load  # noqa: E402
from outer.numeric.formats import NAMES, named  # noqa: E402

ELEMENTS, ROW = 2**23, 1024
RECIPE = ROOT / "deploy/recipes/demo.toml"
PLAIN = ("eval.every=0", "eval.ngrams=false", "chaos.faults=[]", "budget.tokens=")


def gradient() -> NDArray[np.float32]:
    """float32[ELEMENTS]: normal numbers; rows differ in size by 1.5 e-folds, and every eighth is next to nothing."""
    random = np.random.default_rng(0)
    rows = 1e-3 * np.exp(1.5 * random.standard_normal((ELEMENTS // ROW, 1), np.float32))
    rows[::8] *= 1e-4
    numbers: NDArray[np.float32] = (rows * random.standard_normal((ELEMENTS // ROW, ROW), np.float32)).reshape(-1)
    return numbers


def speed(name: str, numbers: NDArray[np.float32], repeats: int) -> dict[str, Any]:
    codec = named(name)
    codec.warm_up()

    def gb_s(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(repeats):
            begun = time.thread_time()
            work()
            seconds.append(time.thread_time() - begun)
        return numbers.nbytes / statistics.median(seconds) / 1e9

    payload = codec.encode(numbers, 1)
    off = np.abs(codec.decode(payload, len(numbers)) - numbers)
    return {
        "codec": name,
        "encode_gb_s": gb_s(lambda: codec.encode(numbers, 1)),
        "decode_gb_s": gb_s(lambda: codec.decode(payload, len(numbers))),
        "check_gb_s": gb_s(lambda: codec.inspect(payload, len(numbers))),
        "factor": numbers.nbytes / payload.nbytes,
        "error": float(np.linalg.norm(off) / np.linalg.norm(numbers)),
        "of_bound": float((off / np.maximum(codec.bound(numbers), np.finfo(np.float32).tiny)).max()),
    }


def losses(options: argparse.Namespace) -> list[dict[str, Any]]:
    sync, rows = load(RECIPE).sync, []
    settings = [*PLAIN, f"budget.syncer_steps={options.rounds * sync.round_steps}", *options.set]
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, options.codecs[0])
        for name in options.codecs:
            command = [sys.executable, "-m", "orchestrator", "study", str(RECIPE), "--json"]
            command += ["--seeds", str(options.seeds)]
            chosen = [f"{key}={name}" for key in options.key]
            command += [part for each in (*settings, *chosen) for part in ("--set", each)]
            command += ["--out", str(Path(folder, name))]
            if name != options.codecs[0]:
                command += ["--against", str(first)]
            told = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
            row = {"codec": name, "seeds": options.seeds, "held_out_loss": told["eval_loss"]}
            if against := told.get("against"):
                percent = 100.0 / rows[0]["held_out_loss"]
                row["more_percent"] = percent * against["mean"]
                row["interval"] = against["half_width"] and percent * against["half_width"]
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--codecs", nargs="+", choices=NAMES, default=list(NAMES))
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--loss", action="store_true")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--key", nargs="+", default=["sync.codec"])
    arguments.add_argument("--set", nargs="*", default=[])
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    if options.loss:
        rows = losses(options)
    else:
        numbers = gradient()
        rows = [speed(name, numbers, options.repeats) for name in options.codecs]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
