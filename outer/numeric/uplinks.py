"""What each fragment's contributions and versions weigh on the wire, in every format that a link may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outer.numeric.formats import below, named
from outer.protocol.fragments import Fragment
from outer.protocol.links.adapting import Uplinks

if TYPE_CHECKING:
    from outer.config import SyncConfig


def uplinks(sync: SyncConfig, fragments: Sequence[Fragment]) -> Uplinks:
    """The run's format, and those below it if links may adapt. A model with a mean keeps its format: a difference that
    is rounded could make a variance negative.
    """
    mean = any(tensor.kind == "mean" for fragment in fragments for tensor in fragment.tensors)
    lower = below(sync.codec) if sync.has_ladder and not mean else ()
    sizes = tuple(tuple(named(name).bytes(each.size) for each in fragments) for name in (sync.codec, *lower))
    return Uplinks(("", *lower), sizes, tuple(named(sync.downlink).bytes(each.size) for each in fragments))
