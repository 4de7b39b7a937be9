"""Reads a file that `diloco export` wrote, with safetensors and NumPy alone; imports nothing of this project.

    python examples/read_export.py model.safetensors

Prints the metadata, then the shape, the dtype in the model, and the norm of each tensor. All values are float32.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from safetensors import safe_open

FORMAT = "decoupled-diloco/1"


def read(path: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(tensors by name, metadata as text)."""
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def main(path: str) -> None:
    tensors, about = read(path)
    if about.get("format") != FORMAT:
        raise SystemExit(f"{path}: not a {FORMAT} file; write one with: diloco export RUN")
    dtypes = json.loads(about.pop("dtypes"))
    for key in sorted(about):
        print(f"{key:14}  {about[key]}")
    for name, values in sorted(tensors.items()):
        norm = np.linalg.norm(values.astype(np.float64))
        print(f"{name:40}  {list(values.shape)!s:14}  {dtypes[name]:9}  norm {norm:.6g}")
    print(f"{len(tensors)} tensors, {sum(values.size for values in tensors.values()):,} elements")


if __name__ == "__main__":
    main(sys.argv[1])
