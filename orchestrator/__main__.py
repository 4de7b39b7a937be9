"""The composition root, the only file above the doors: hands chaos's commands, starter and simulator to the CLI."""

from __future__ import annotations

from typing import Any

from chaos.cli import app as chaos_app
from chaos.plans import plan, random_faults
from chaos.simulation.hostile_tape import HOSTILE
from orchestrator.cli.app import build


def start_chaos(*arguments: Any, **options: Any) -> Any:
    """`chaos.actor.start`, imported when a run asks for it: most commands need no Ray."""
    from chaos.actor import start

    return start(*arguments, **options)


def faults(chaos: Any, learners: list[str], seed: int) -> tuple[Any, Any]:
    """A plan's faults, and endless random ones."""
    planned = plan(chaos, learners, seed)
    return planned, random_faults(chaos, learners, seed, len(planned))


def main() -> None:
    build(extensions=[("chaos", chaos_app)], starter=start_chaos, hostile=HOSTILE, faults=faults)()


if __name__ == "__main__":
    main()
