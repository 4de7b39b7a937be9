"""A real run computed again from its folder, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPLAY_S = 600.0


def assert_bit_equal(folder: Path, *options: str) -> dict[str, Any]:
    """Every loss, state, contribution and commit, and the final parameters. Returns what was told."""
    command = [sys.executable, "-m", "orchestrator", "replay", str(folder), "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=REPLAY_S)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["bit_equal"] is True and told["sealed"] is True
    assert told["equal"] == told["compared"]
    assert told["equal"]["final"] == 1 and told["equal"]["loss"] == told["steps"]
    return told
