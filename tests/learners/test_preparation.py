"""What a standby does ahead: all that a start needs on CPUs, and on accelerators the imports, which take no device."""

from __future__ import annotations

import subprocess
import sys

AHEAD = """
import os, sys
from types import SimpleNamespace
from learners.preparation import Preparation

Preparation(SimpleNamespace(core=None, platform="gpu", devices=None), ["0"]).ahead()
from jax._src import xla_bridge

before = set(sys.modules)
from learners.fragment_io import FragmentIO
from learners.training.devices import device_checks
from learners.training.task import load
from learners.training.trainer import Trainer
from learners.training.tree import deal, left_out

print(sorted(set(sys.modules) - before), xla_bridge._backends)
"""


def test_on_an_accelerator_everything_is_imported_and_no_device_is_taken() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", AHEAD], env=environment, capture_output=True, text=True, timeout=300.0, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[] {}"), done.stderr
