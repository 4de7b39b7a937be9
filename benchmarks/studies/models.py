"""Models for studies of a fleet: so many parameters in equal fragments. Knows nothing of what is in them."""

from __future__ import annotations

from outer.protocol.fragments import Fragment, Tensor


def even(parameters: int, fragments: int) -> tuple[Fragment, ...]:
    """P fragments of as equal a size as can be."""
    size, more = divmod(parameters, fragments)
    return tuple(
        Fragment(index, (Tensor(f"part/{index}", (size + (index < more),), "float32"),)) for index in range(fragments)
    )
