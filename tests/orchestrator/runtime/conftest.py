"""A scene for each test of the learners' shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.runtime.scene import Scene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)
