"""The `diloco` command: its subcommands in the groups in which `--help` shows them.

A command's module is imported when that command is asked for. `--help` needs names and summaries alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator import __version__

RUN, WATCH, PLAN, PROVE, USE = ("Run", "Watch", "Plan, without training", "Prove", "Use the model")


@dataclass(frozen=True)
class CommandEntry:
    """A command, or a group of commands, before it is imported."""

    panel: str  # of --help
    name: str
    summary: str  # the first clause of its own help
    load: Callable[[], Any]  # its function, or a typer.Typer


def _entry(panel: str, name: str, summary: str, attribute: str = "", module: str = "") -> CommandEntry:
    """A command of this folder, by default the function NAME in the module NAME."""
    word = name.replace("-", "_")
    place = f"orchestrator.cli.{module or word}"
    return CommandEntry(panel, name, summary, lambda: getattr(import_module(place), attribute or word))


COMMANDS = (
    _entry(RUN, "init", "Write a commented recipe with good defaults", module="recipes"),
    _entry(RUN, "run", "Train by a recipe, or resume a run that was stopped or died"),
    _entry(RUN, "submit", "Train by a recipe on a cluster, as a Ray job"),
    _entry(RUN, "join", "Give a run the learners of one more region, until it ends"),
    _entry(RUN, "scale", "Change the number of learners in a pool of a running job"),
    _entry(RUN, "stop", "Stop a running job cleanly", module="status"),
    _entry(RUN, "compare", "Train a recipe, and conventionally by Ray Train, and set both side by side"),
    _entry(RUN, "checkpoint", "Take, list and verify checkpoints", "app"),
    _entry(RUN, "door", "Serve a folder as the store of runs in other regions, over HTTPS"),
    _entry(RUN, "invite", "Make a region's token for a door", module="door"),
    _entry(RUN, "data", "Prepare token shards", "app"),
    _entry(WATCH, "ls", "List runs: how far each is, and why it ended", module="status"),
    _entry(WATCH, "status", "Show a run's latest status, or follow the run to its end"),
    _entry(WATCH, "watch", "Show runs on a live page, in the browser"),
    _entry(WATCH, "log", "Print a run's log, one event a line, in its order"),
    _entry(WATCH, "report", "Write report.html from a run's log as it is now", module="check"),
    _entry(WATCH, "track", "Show a run's curves in TensorBoard or Weights & Biases"),
    _entry(PLAN, "plan", "Show what a run needs, sends and survives, and whether it fits"),
    _entry(PLAN, "check-task", "Check that a task does what learners and syncer rely on"),
    _entry(PROVE, "check", "Make every check on a run's log"),
    _entry(PROVE, "replay", "Compute a recorded run again and compare it to the bit"),
    _entry(USE, "export", "Write a run's parameters for other programs, and read them back"),
)


@dataclass(frozen=True)
class Wiring:
    """The functions of the room above, which the composition root hands in and commands find in their context."""

    starter: Callable[..., Any] | None  # starts chaos beside a run
    strike: Callable[..., str] | None = None  # (store, kind, target): injects a fault, and says what happened


def build(
    extensions: Sequence[CommandEntry] = (),
    starter: Callable[..., Any] | None = None,
    strike: Callable[..., str] | None = None,
) -> typer.Typer:
    """Return the command line. `extensions` are further commands; the others as in Wiring."""

    class Wired(Root):
        entries = (*COMMANDS, *extensions)

    app = typer.Typer(
        cls=Wired,
        help="Decoupled DiLoCo: train one model on islands of compute that do not wait for each other.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(context: typer.Context, version: Version = False) -> None:
        context.obj = Wiring(starter, strike)

    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"diloco {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
]


class Root(TyperGroup):
    """`diloco` itself. Its commands are names and summaries; one is imported when it is called."""

    entries: Sequence[CommandEntry] = ()

    def __init__(self, **settings: Any) -> None:
        commands = [TyperCommand(each.name, help=each.summary, rich_help_panel=each.panel) for each in self.entries]
        super().__init__(**settings | {"commands": commands})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.imported()[str(name)]() if found else None, rest

    def imported(self) -> dict[str, Callable[[], Any]]:
        """What imports each command, by its name."""
        return {each.name: partial(_command, each) for each in self.entries}


def _command(entry: CommandEntry) -> Any:
    """Import a command, and keep the brackets in its help: Typer would read [fleet] as a tag of markup."""
    loaded = entry.load()
    group = typer.Typer(add_completion=False)
    if isinstance(loaded, typer.Typer):
        group.add_typer(loaded, name=entry.name, rich_help_panel=entry.panel)
        whole = typer.main.get_group(group).commands[entry.name]
    else:
        group.command(entry.name, rich_help_panel=entry.panel)(loaded)
        whole = typer.main.get_command(group)
    commands = [whole, *getattr(whole, "commands", {}).values()]
    for told in (*commands, *(each for command in commands for each in command.params)):
        if text := getattr(told, "help", None):
            told.help = text.replace("[", "\\[")
    return whole
