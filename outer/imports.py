"""Functions named by import path, `package.module:function`: rules that are a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any


def function_at(name: str, known: Mapping[str, Any], what: str) -> Any:
    """The function of this name in `known`, else the one at this import path.

    `what`: what it is, in messages. Raises ValueError, with what is wrong and the fix.
    """
    if name in known:
        return known[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name!r} is no {what}; known are {', '.join([*known, 'any `package.module:function`'])}")
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a user's module may raise anything
        raise ValueError(
            f"{name!r} does not import ({type(error).__name__}: {error}); give `package.module:function`"
        ) from error
    if not callable(found):
        raise ValueError(f"{name!r} is not callable; name a function")
    return found
