"""The size of a state, in elements."""

from __future__ import annotations

from collections import deque
from typing import Any


def deep_size(root: Any) -> int:
    """Count the elements of all containers that are reachable through containers and attributes.

    What the simulator puts into the machines' hands, such as values with all their ancestors, is not the machines'.
    """
    total, seen, waiting = 0, set[int](), [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or callable(each) or isinstance(each, str | bytes | int | float | type(None)):
            continue
        if type(each).__module__.startswith("chaos."):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            total += len(each)
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            total += len(each)
            waiting += each
        else:
            waiting += getattr(each, "__dict__", {}).values()
            waiting += (getattr(each, name) for name in getattr(each, "__slots__", ()) if hasattr(each, name))
    return total
