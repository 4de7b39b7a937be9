"""How a bug is planted: attributes of the machines, replaced for as long as a run lasts. Knows no bug.

A bug is a function whose docstring is the promise that it breaks; `around`, `instead` or, where several things have to
be replaced, `mutant` makes it an entry of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any
from unittest.mock import patch


class Plant:
    """Until `stack` is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def put(self, owner: Any, name: str, new: Any) -> None:
        self._stack.enter_context(patch.object(owner, name, new))

    def around(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Replace what is there by what `wrapper` makes of it."""
        self.put(owner, name, wrapper(getattr(owner, name)))


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str  # the promise, in one sentence
    bug: Callable[[Plant], None]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Machines that are made inside have the bug."""
        with ExitStack() as stack:
            self.bug(Plant(stack))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(bug: Callable[[Plant], None]) -> Callable[[Plant], None]:
    """Enter a bug into the table under its function's name."""
    name = bug.__name__.replace("_", "-")
    assert bug.__doc__ is not None and name not in MUTANTS, name
    MUTANTS[name] = Mutant(name, " ".join(bug.__doc__.split()), bug)
    return bug


def around(owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[[Plant], None]]:
    """Enter a bug that is called in place of these functions of a class or module, and is given the function first."""

    def enter(bug: Callable[..., Any]) -> Callable[[Plant], None]:
        def plant_it(plant: Plant) -> None:
            for name in names:
                plant.around(owner, name, lambda function: lambda *given, **more: bug(function, *given, **more))

        return mutant(update_wrapper(plant_it, bug))

    return enter


def instead(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[[Plant], None]]:
    """Enter a bug that is called in place of this function of a class or module."""
    return lambda bug: mutant(update_wrapper(lambda plant: plant.put(owner, name, bug), bug))
