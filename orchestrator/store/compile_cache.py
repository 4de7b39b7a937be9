"""Where JAX keeps compiled programs. Learners keep them apart by device kind below that, too."""

from __future__ import annotations

import os
from pathlib import Path

from learners.training.devices.device import host_kind
from orchestrator.store.run_store import user_cache


def compilation_cache(fallback: Path) -> dict[str, str]:
    """Environment variables for a cache shared by this user's processes; below `fallback` if that is not writable."""
    try:
        folder = user_cache() / "compiled" / host_kind()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(folder)
    except (OSError, RuntimeError):
        folder = fallback / "compiled" / host_kind()
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
