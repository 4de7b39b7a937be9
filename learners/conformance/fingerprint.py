"""Fingerprints of a task, to compare two processes: they reveal hash seeds, clocks and unseeded generators.

As a program it reads a task's factory arguments as JSON on stdin and prints the fingerprint as JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

PROCESS_S = 300.0  # seconds that the other process may take


def fingerprint(task: Any, seed: int, batch_size: int) -> dict[str, Any]:
    """SHA-256 of the initial parameters, of two batches and of held-out samples; the first loss as a number."""
    import jax
    import numpy as np

    def digest(tree: Any) -> str:
        running = hashlib.sha256(str(jax.tree.structure(tree)).encode())
        for leaf in map(np.asarray, jax.tree.leaves(tree)):
            running.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        return running.hexdigest()

    params = jax.jit(lambda key: task.init(key))(jax.random.key(seed))
    batch = task.batch(0, batch_size)
    return {
        "init": digest(params),
        "batch": digest((batch, task.batch(9 * batch_size, batch_size))),
        "held_out": digest(task.held_out(0, batch_size)),
        "loss": float(jax.jit(lambda *given: task.loss(*given)[0])(params, batch, jax.random.key(0))),
    }


def elsewhere(task: str, model: Mapping[str, Any], data: Mapping[str, Any], seed: int, batch_size: int) -> Any:
    """The fingerprint of the same task in a new process with another hash seed.

    Raises RuntimeError, with the end of its stderr, if the process fails or takes more than PROCESS_S.
    """
    asked = {"task": task, "model": dict(model), "data": dict(data), "seed": seed, "batch_size": batch_size}
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONHASHSEED": "271828" if os.environ.get("PYTHONHASHSEED") != "271828" else "314159",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "learners.conformance.fingerprint"],
            input=json.dumps(asked),
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"a new process does not finish within {PROCESS_S:.0f} s") from error
    if done.returncode != 0:
        raise RuntimeError(f"a new process fails: {' '.join(done.stderr.split())[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    from learners.config import DataConfig
    from learners.training.task import load

    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer alone
        task = load(asked["task"], DataConfig(**asked["data"]), asked["seed"], asked["model"])
        found = fingerprint(task, asked["seed"], asked["batch_size"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
