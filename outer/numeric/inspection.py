"""Whether a contribution's payload is what it says: checksum, shape, finiteness. A defect is a fact, not an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outer.numeric import codec as codecs
from outer.protocol.messages import Contribution


def examine(contribution: Contribution, codec: str, size: int) -> Contribution:
    """The same contribution with its defect named: wrong_shape, bad_digest, non_finite, or "" for none.

    `size`: elements of the fragment.
    """
    payload = contribution.payload
    if not isinstance(payload, np.ndarray) or payload.ndim != 1:
        return replace(contribution, payload=None, defect="wrong_shape")
    if codecs.digest(payload) != contribution.digest:
        return replace(contribution, payload=None, defect="bad_digest")
    if defect := codecs.inspect(codec, payload, size):
        return replace(contribution, payload=None, defect=defect)
    return contribution
