"""What must be equal on both sides, and how differences are told."""

from __future__ import annotations

from outer.protocol.fragments import Fragment, Tensor
from outer.protocol.manifest import code_digest, difference, flatten, manifest

FRAGMENTS = (Fragment(0, (Tensor("w", (2, 3), "float32"),)), Fragment(1, (Tensor("b", (3,), "bfloat16"),)))


def test_nested_tables_become_dotted_keys() -> None:
    assert flatten({"sync": {"H": 4, "deep": {"er": 1}}, "seed": 0}) == {"sync.H": 4, "sync.deep.er": 1, "seed": 0}
    assert flatten({}) == {}


def test_a_manifest_holds_the_recipe_every_tensors_place_and_the_code() -> None:
    assert manifest({"sync": {"H": 4}}, FRAGMENTS, "c0de") == {
        "sync.H": 4,
        "fragment.0.w": "float32[2, 3]",
        "fragment.1.b": "bfloat16[3]",
        "code": "c0de",
    }


def test_a_tensor_in_another_fragment_or_of_another_shape_is_a_difference() -> None:
    ours = manifest({}, FRAGMENTS, "c")
    moved = manifest({}, (Fragment(0, FRAGMENTS[1].tensors), Fragment(1, FRAGMENTS[0].tensors)), "c")
    reshaped = manifest({}, (Fragment(0, (Tensor("w", (3, 2), "float32"),)), FRAGMENTS[1]), "c")
    assert "fragment.0.w" in difference(ours, moved)
    assert difference(ours, reshaped) == "fragment.0.w: here 'float32[2, 3]', there 'float32[3, 2]'"
    assert difference(ours, dict(reversed(ours.items()))) == ""


def test_a_leaf_of_another_kind_is_a_difference_also_where_it_is_in_no_fragment() -> None:
    ours = manifest({}, FRAGMENTS, "c", {"table": "float32[2] frozen"})
    averaged = (Fragment(0, (Tensor("w", (2, 3), "float32", "mean"),)), FRAGMENTS[1])
    theirs = manifest({}, averaged, "c", {"table": "float32[2] local"})
    assert difference(ours, theirs) == (
        "fragment.0.w: here 'float32[2, 3]', there 'float32[2, 3] mean'; "
        "fragment.none.table: here 'float32[2] frozen', there 'float32[2] local'"
    )


def test_a_missing_field_is_named_and_long_lists_are_cut() -> None:
    assert difference({"a": 1}, {}) == "a: here 1, there None"
    assert difference({}, {"a": 1}) == "a: here None, there 1"
    many = difference({f"k{index}": index for index in range(11)}, {})
    assert many.endswith("; and 3 more") and many.count(": here") == 8


def test_the_codes_digest_is_that_of_the_sources_and_stays_the_same() -> None:
    assert code_digest() == code_digest()
    assert len(code_digest()) == 16 and int(code_digest(), 16) >= 0
