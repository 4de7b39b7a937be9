"""Settings for all tests."""

import os
import tempfile
from typing import Any

import jax
import pytest
from hypothesis import settings

from learners.training.devices.device import CPU_FLAGS

# A slow machine is no failure: no example has a deadline.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)  # there, the same every time
settings.register_profile("small", settings.get_profile("project"), max_examples=20)  # and property_settings.py
settings.load_profile("project")

RAY = ("tests/runtime/", "chaos/suite/", "tests/benchmarks/test_gpu.py")  # tests that start Ray
WORKER = "PYTEST_XDIST_WORKER" in os.environ  # of `make test`, not a process of the gate, or for one test
# Of a worker: half its time is compiling, and this halves that. XLA stops reading at a word without a hyphen.
FLAGS = f"--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true {CPU_FLAGS}"


def pytest_configure(config: pytest.Config) -> None:
    """One cache of compiled programs for this process and those that it starts.

    A test whose claim is about compiling turns it off: see `compiled_anew` in test_trainer.py. Not shared with other
    processes of tests: JAX writes its entries in place, and warns of one that it finds half written.
    """
    folder = tempfile.TemporaryDirectory(prefix="diloco-compiled-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": folder.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if WORKER:
        os.environ["XLA_FLAGS"] = FLAGS
        jax.devices()  # they are read now, and never again in this process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray come first: they take longest. Of these, the chaos suite, which ends its Ray."""
    items.sort(key=lambda item: (not item.nodeid.startswith(RAY), item.nodeid.startswith("tests/")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Learners on Ray compile as anywhere, and replay has their flags."""
    if WORKER:
        os.environ["XLA_FLAGS"] = FLAGS
        if item.nodeid.startswith((*RAY, "tests/examples/")):
            del os.environ["XLA_FLAGS"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests on Ray to one worker: two Rays starve each other. Those of any other file stay together."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "Ray" if nodeid.startswith(RAY) else super()._split_scope(nodeid)

    return OneRay(config, log)
