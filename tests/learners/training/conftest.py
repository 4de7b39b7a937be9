from pathlib import Path

import pytest

from tests.door import door as door
from tests.s3 import s3 as s3


@pytest.fixture(scope="session")
def foxes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of six short texts."""
    root: Path = tmp_path_factory.mktemp("corpus")
    for index in range(6):
        (root / f"{index}.txt").write_text("the quick brown fox jumps over the lazy dog. " * (20 + index))
    return str(root)
