"""The manifest: what a learner and the syncer must agree on before they exchange parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outer.protocol.fragments import Fragment


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into one table with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def manifest(
    shared: Mapping[str, Any], fragments: Iterable[Fragment], code: str, left_out: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what must be equal: shared tables, every leaf's fragment, dtype, shape and kind, and the code digest.

    `left_out`: the leaves that are in no fragment, by name, as Tensor.described.
    """
    tensors = {f"fragment.none.{name}": described for name, described in (left_out or {}).items()}
    tensors |= {
        f"fragment.{fragment.index}.{tensor.name}": tensor.described
        for fragment in fragments
        for tensor in fragment.tensors
    }
    return flatten(shared) | tensors | {"code": code}


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Describe the fields that differ, for the log; empty when none does."""
    keys = [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]
    shown = [f"{key}: here {ours.get(key)!r}, there {theirs.get(key)!r}" for key in keys[:8]]
    return "; ".join(shown) + (f"; and {len(keys) - 8} more" if len(keys) > 8 else "")


def code_digest() -> str:
    """SHA-256 of this project's sources as this process sees them: 16 hexadecimal digits."""
    root = Path(__file__).resolve().parents[2]
    running = hashlib.sha256()
    for room in ("outer", "learners", "orchestrator", "chaos"):
        for path in sorted((root / room).rglob("*.py")):
            running.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return running.hexdigest()[:16]
