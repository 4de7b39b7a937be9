"""Reads parameters from files by tensor name, compares them with a model, and splits them into fragments.

The formats are a run's `final/` folder, safetensors, and Hugging Face folders. Does not import JAX.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from learners.config import WarmStart
from learners.training.data.byte_corpus import unusable
from learners.training.models import huggingface
from outer.protocol.fragments import Fragment, Tensor

Flat = NDArray[np.float32]
Named = Mapping[str, Flat]  # tensor name -> float32 array of the tensor's shape

_FLOATS: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def read(path: str | Path) -> dict[str, Flat]:
    """Read the tensors of a safetensors file, a `final/` folder or the run folder around one, or a Hugging Face folder
    of the decoder's (models/huggingface.py), as float32.

    Raises ValueError, with the problem and, after a semicolon, the fix, for anything else, and for tensors that are not
    floating-point, not finite, or do not match their manifest.
    """
    source = Path(path).expanduser()
    try:
        if huggingface.is_folder(source):
            theirs: dict[str, Flat] = {}
            for file in huggingface.weight_files(source):
                theirs |= _read_safetensors(file)
            named = huggingface.ours(source, theirs)
        elif source.is_dir():
            named = _read_final(source)
        elif source.is_file():
            named = _read_safetensors(source)
        else:
            raise ValueError(
                "no such file or folder; give a .safetensors file, a run's folder, its final/, or a Hugging Face folder"
            )
    except OSError as error:
        raise ValueError(f"cannot be read: {error}; give a file that this user may read") from error
    bad = [name for name, values in named.items() if not np.isfinite(values).all()]
    if bad:
        raise ValueError(f"{', '.join(bad)} have elements that are not finite; give parameters of a sound run")
    return named


def metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty for a folder."""
    if Path(path).is_dir():
        return {}
    with safe_open(path, "np") as file:
        return dict(file.metadata() or {})


def digest(named: Named) -> str:
    """SHA-256 of names, shapes and float32 bytes, sorted by name: 16 hexadecimal digits."""
    running = hashlib.sha256()
    for name in sorted(named):
        values = np.ascontiguousarray(named[name], dtype=np.float32)
        running.update(f"{name}\0{list(values.shape)}\0".encode() + values.tobytes())
    return running.hexdigest()[:16]


def differences(named: Named, tensors: Sequence[Tensor]) -> list[str]:
    """Every difference between the tensors and those of the model, in words; empty when they fit.

    Leaves that are not sent may be missing: they keep their initial values.
    """
    wanted = {tensor.name: tensor.shape for tensor in tensors}
    found = [f"{tensor.name} is missing" for tensor in tensors if tensor.sent and tensor.name not in named]
    found += [
        f"{name} has shape {list(named[name].shape)}, the model's has {list(shape)}"
        for name, shape in wanted.items()
        if name in named and named[name].shape != shape
    ]
    return found + [f"{name} is not a tensor of the model" for name in named if name not in wanted]


def dealt(named: Named, fragments: Sequence[Fragment]) -> list[Flat]:
    """Split tensors that fit the model into fragments: float32[n] for each."""
    return [np.concatenate([named[t.path][t.index].reshape(-1) for t in each.tensors]) for each in fragments]


def joined(fragments: Sequence[Fragment], thetas: Sequence[Flat]) -> dict[str, Flat]:
    """The opposite of `dealt`: whole tensors by name, from float32[n] per fragment.

    Copies of those that are in pieces; of all others, views.
    """
    named: dict[str, Flat] = {}
    pieces: dict[str, list[tuple[Tensor, Flat]]] = {}
    for fragment, theta in zip(fragments, thetas, strict=True):
        for tensor, place in fragment.slices():
            values = theta[place].reshape(tensor.shape)
            if tensor.cut is None:
                named[tensor.name] = values
            else:
                pieces.setdefault(tensor.path, []).append((tensor, values))
    for path, parts in pieces.items():
        parts.sort(key=lambda part: part[0].start)
        named[path] = np.concatenate([values for _, values in parts], axis=parts[0][0].axis)
    return named


def unchanged(warm: WarmStart) -> dict[str, Flat]:
    """The tensors of a warm start. Raises ValueError if the file changed since the run began."""
    named = read(warm.path)
    if (found := digest(named)) != warm.digest:
        raise ValueError(f"{warm.path!r} has changed: its digest is {found}, and the run began with {warm.digest}")
    return named


def _read_final(folder: Path) -> dict[str, Flat]:
    final = folder if (folder / "manifest.json").is_file() else folder / "final"
    if not (final / "manifest.json").is_file():
        raise ValueError(
            "the folder holds no final parameters: they are written when a run ends, unless it failed; "
            "give the folder of a run that has ended, or a .safetensors file"
        )
    fix = "the folder was damaged or only partly copied; copy it again"
    _refuse_stand_ins(final / "manifest.json", final / "parameters.npz")
    try:
        described = json.loads((final / "manifest.json").read_text(encoding="utf-8"))["tensors"]
        # Opened here: np.load leaves a damaged archive open.
        with open(final / "parameters.npz", "rb") as file, np.load(file, allow_pickle=False) as arrays:
            named = {name: np.asarray(arrays[name], dtype=np.float32) for name in described}
        expected = {name: about["sha256"] for name, about in described.items()}
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, FileNotFoundError) as error:
        raise ValueError(f"{final} cannot be read as final parameters: {error}; {fix}") from error
    if wrong := [name for name, values in named.items() if sha256(values) != expected[name]]:
        raise ValueError(f"{', '.join(wrong)} do not match the manifest; {fix}")
    return named


def _refuse_stand_ins(*paths: Path) -> None:
    """Raises ValueError for a link to nothing, and for a pointer of git lfs."""
    if odd := [f"{path.name} {why}" for path in paths if (why := unusable(path))]:
        raise ValueError(f"{', '.join(odd)}; give the file itself")


def _read_safetensors(path: Path) -> dict[str, Flat]:
    _refuse_stand_ins(path)
    try:
        stored = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"is not a safetensors file: {error}; diloco export writes one") from error
    if whole := [f"{name} ({about['dtype']})" for name, about in stored if about["dtype"] not in _FLOATS]:
        raise ValueError(f"{', '.join(whole)} are not floating-point; remove them from the file")
    return {
        name: np.frombuffer(about["data"], dtype=_FLOATS[about["dtype"]]).reshape(about["shape"]).astype(np.float32)
        for name, about in sorted(stored)
    }


def sha256(values: Flat) -> str:
    """SHA-256 of the float32 bytes, hexadecimal, as in a manifest."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
