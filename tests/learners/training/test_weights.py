"""Parameters from files: every format reads as float32, and every difference from a model is named."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from learners.config import WarmStart
from learners.training import weights
from outer.protocol.fragments import Fragment, Tensor

TENSORS = (Tensor("a", (2, 2), "float32"), Tensor("b", (3,), "float32"), Tensor("c", (), "float32"))
NAMED = {"a": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.ones(3, np.float32), "c": np.array(5.0, np.float32)}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_floating_dtype_reads_as_float32(tmp_path: Path, dtype: type) -> None:
    save_file({"x": np.array([[0.5, -2.0]], dtype)}, tmp_path / "x.safetensors")
    found = weights.read(tmp_path / "x.safetensors")
    assert found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["x"], [[0.5, -2.0]])


def test_tensors_are_dealt_into_fragments_by_name() -> None:
    fragments = (Fragment(0, (TENSORS[2], TENSORS[0])), Fragment(1, (TENSORS[1],)))
    first, second = weights.dealt(NAMED, fragments)
    np.testing.assert_array_equal(first, [5, 0, 1, 2, 3])
    np.testing.assert_array_equal(second, [1, 1, 1])


def test_every_difference_is_named_and_none_where_all_fits() -> None:
    assert weights.differences(NAMED, TENSORS) == []
    other = {"a": np.zeros((4,), np.float32), "c": NAMED["c"], "d": np.zeros(1, np.float32)}
    assert weights.differences(other, TENSORS) == [
        "b is missing",
        "a has shape [4], the model's has [2, 2]",
        "d is not a tensor of the model",
    ]


def test_the_digest_tells_values_names_and_shapes_apart_but_not_their_order() -> None:
    plain = weights.digest(NAMED)
    assert weights.digest(dict(reversed(NAMED.items()))) == plain
    others = [NAMED | {"b": np.zeros(3, np.float32)}, NAMED | {"a": NAMED["a"].reshape(4)}, NAMED | {"d": NAMED["c"]}]
    assert plain not in {weights.digest(other) for other in others}


def test_what_is_no_file_of_parameters_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    save_file({"n": np.arange(3)}, tmp_path / "whole")
    save_file({"n": np.array([1.0, np.nan])}, tmp_path / "nan")
    refusals = {
        "missing": "no such file or folder; give",
        "text": "is not a safetensors file.*; diloco export",
        "empty": "no final parameters.*; give",
        "whole": r"n \(I64\) are not floating-point; remove",
        "nan": "n have elements that are not finite; give",
    }
    for name, words in refusals.items():
        with pytest.raises(ValueError, match=words):
            weights.read(tmp_path / name)


def test_a_warm_start_whose_content_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(NAMED, path)
    start = WarmStart(str(path), weights.digest(NAMED))
    fragments = (Fragment(0, TENSORS),)
    np.testing.assert_array_equal(weights.dealt(weights.unchanged(start), fragments)[0], [0, 1, 2, 3, 1, 1, 1, 5])
    save_file(NAMED | {"c": np.array(6.0, np.float32)}, path)
    with pytest.raises(ValueError, match="has changed"):
        weights.dealt(weights.unchanged(start), fragments)
