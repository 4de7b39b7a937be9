"""The composition root, the only file above the doors: hands chaos's commands and starter to the CLI.

It imports them when they are asked for: most commands need neither.
"""

from __future__ import annotations

from typing import Any

from orchestrator.cli.app import PROVE, CommandEntry, build
from orchestrator.runtime.job import prepare_process


def _commands() -> Any:
    from chaos.cli import app

    return app


def _start(*arguments: Any, **options: Any) -> Any:
    from chaos.actor import start

    return start(*arguments, **options)


def strike(*arguments: Any) -> str:
    from chaos.cli import strike

    return strike(*arguments)


CHAOS = CommandEntry(PROVE, "chaos", "Inject faults into a running job, or simulate runs under faults", _commands)


def main() -> None:
    prepare_process()
    build(extensions=[CHAOS], starter=_start, strike=strike)()


if __name__ == "__main__":
    main()
