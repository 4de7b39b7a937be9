"""Settings for all tests."""

import os
import tempfile
from typing import Any

import pytest
from hypothesis import settings

# A slow machine is no failure: no example has a deadline.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)  # there, the same every time
settings.register_profile("small", settings.get_profile("project"), max_examples=20)  # and property_settings.py
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """One cache of compiled programs for this process and those that it starts: most of their time is compiling.

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


RAY = ("tests/runtime/", "chaos/suite/", "tests/benchmarks/test_gpu.py")  # tests that start Ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray come first: they take longest. Of these, the chaos suite, which ends its Ray."""
    items.sort(key=lambda item: (not item.nodeid.startswith(RAY), item.nodeid.startswith("tests/")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests on Ray to one worker: two Rays starve each other. Those of any other file stay together."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "Ray" if nodeid.startswith(RAY) else super()._split_scope(nodeid)

    return OneRay(config, log)
