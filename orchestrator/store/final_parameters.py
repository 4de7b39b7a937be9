"""`final/`: the run's parameters as plain NumPy arrays, no pickle.

parameters.npz   one float32 array per tensor, under its path in the parameter tree; numpy.load reads it
manifest.json    syncer step, and per tensor its shape, its dtype in the model, and SHA-256 of its float32 bytes
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.run_store import RunStore
from outer.protocol.fragments import Fragment


def write(
    store: RunStore, syncer_step: int, fragments: Sequence[Fragment], thetas: Sequence[NDArray[np.float32]]
) -> None:
    """Write both files; thetas are float32[n], one per fragment. The manifest comes last."""
    arrays, described = {}, {}
    for fragment, theta in zip(fragments, thetas, strict=True):
        for tensor, place in fragment.slices():
            values = np.ascontiguousarray(theta[place]).reshape(tensor.shape)
            arrays[tensor.name] = values
            described[tensor.name] = {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "fragment": fragment.index,
                "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
            }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # as numpy.savez, which cannot take every name
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
    store.path("final").mkdir(exist_ok=True)
    store.path("final/parameters.npz").write_bytes(buffer.getvalue())
    store.write_json("final/manifest.json", {"syncer_step": syncer_step, "tensors": described})
