"""The production merge of given outer gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outer.numeric.merge import Contributions, layout
from outer.protocol.fragments import Fragment


def merge(
    fragment: Fragment,
    gradients: Sequence[NDArray[np.floating]],
    weights: Sequence[float],
    rules: Mapping[str, str],
    granularity: str,
    threads: int = 1,
) -> NDArray[np.float64]:
    """The merged outer gradient of these, rounded to float32 [n]: the syncer's value is zero, the learners' are -g."""
    payloads = [-np.asarray(gradient, np.float32) for gradient in gradients]
    given = Contributions("fp32", np.zeros(fragment.size, np.float32), payloads, weights, threads)
    return given.gradient(layout(fragment, rules, granularity))
