"""Programs that some tests start. In CI a missing one fails its tests; elsewhere they are skipped and say why."""

from __future__ import annotations

import os
import shutil

import pytest


def needs(program: str, package: str) -> pytest.MarkDecorator:
    """Mark of a test that starts this program. `package` is the Debian package that has it."""
    absent = shutil.which(program) is None and "CI" not in os.environ
    return pytest.mark.skipif(absent, reason=f"{program} is not on the PATH (Debian package: {package})")


def path_of(program: str) -> str:
    """Where the program is. Fails the test if it is absent."""
    found = shutil.which(program)
    assert found is not None, f"{program} is not on the PATH: .ci/run installs it"
    return found
