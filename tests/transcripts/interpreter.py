"""Plays scenarios: each command of a text to one of the machines, and what the machine does in answer, as text.

A file begins with a sentence on what it shows. Its scenarios begin with a line `== claim`; then come commands, one a
line or several after `; `, and what they led to, indented. `#` begins a note. What `given` does is not shown. Commands:

    syncer K=2 P=1 H=1 tau=0       a new syncer; also journals=by_hand, merges=by_hand, a budget: tokens=, syncer_steps=
    learner tau=1 adopt=rebase     a new learner: incarnation 3 of a; `join` brings it to its first step
    controller a b                 a new keeper of learners; its methods are commands
    at 1.5, after 0.5              what the clock says from here on
    show step is_alive             attributes of the machine, and what it answers now
    step a b                       a method of the world: see syncer_world.py and learner_world.py
    fence a 1 killed               an event or message, with its fields in order, or by name: `merged 1 finite=false`

What has its usual value (USUAL) need not be given and is not shown. Counters are v<base version>@<base step>+<steps>/
<tokens>, a participant is <learner>.<incarnation> (<base step>,<step>] <tokens>t x<weight>. A learner's report shows
what has changed since the one before. A line such as `step 1: reading -> merging` is a move of the machine's table; the
moves that one event led to come before its effects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from learners.protocol import events_effects as of_learner
from learners.protocol.learner import Learner
from orchestrator.lifecycle.controller import Controller, Unit
from outer.protocol import events_effects as of_syncer
from outer.protocol.facts import Participant
from outer.protocol.messages import FragmentCounters, Report
from outer.protocol.open_step import OpenStep
from outer.protocol.syncer import Budget
from tests.transcripts.learner_world import Loop
from tests.transcripts.syncer_world import Bench

FOLDER = Path(__file__).parent
USUAL: dict[str, Any] = {
    "epoch": 1, "attempt": 1, "progress": 0.0, "deadline_s": 2.0, "digest": "digest", "norm": 1.0, "finite": True,
    "tokens": 10, "loss": 2.0, "batch_size": 2, "waited_s": 0.0, "waited_for": "",
}  # fmt: skip
OF_SYNCER = {"lease_s": 60.0, "proposal": "value@1"}
OF_LEARNER = {"incarnation": 3, "manifest": {"seed": 0}, "donor": "a", "donor_incarnation": 3, "joiner": "b"}
FIRST = {
    "learner": "a", "incarnation": 3, "sequence": 1, "epoch": None, "tokens": 0, "step": 0, "step_s": 0.0, "loss": None,
}  # fmt: skip
BARE = ("learner", "incarnation", "reason", "message", "phase", "value")  # shown without their names
COUNTERS = re.compile(r"v(none|-?\d+)@(-?\d+)\+(-?\d+)/(-?\d+)")


class Keeper:
    """The orchestrator's controller. Its methods return actions."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.now = 0.0
        self.log: list[Any] = []
        self.machine = Controller(names, **{"backoff_s": 1.0, "hang_s": 20.0, "unreachable_s": 600.0} | settings)

    def call(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        method = getattr(self.machine, name)
        order = list(signature(method).parameters)
        given = {"now": self.now} if "now" in order else {}
        found = method(**given, **dict(zip([each for each in order if each != "now"], args, strict=False)), **named)
        self.log += found if isinstance(found, list) else []


# ------------------------------------------------------------------ reading commands


def value(word: str) -> Any:
    """What a word means: a number, true, false, none, counters, several of these after commas, or itself."""
    if "," in word:
        return tuple(value(each) for each in word.split(",") if each)
    if found := COUNTERS.fullmatch(word):
        return FragmentCounters(*map(value, found.groups()))
    if word in (known := {"true": True, "false": False, "none": None, "empty": ()}):
        return known[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def built(kind: type[Any], usual: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """An event. `args`: the fields that have no value yet, in order."""
    given = {each.name: usual[each.name] for each in fields(kind) if each.name in usual and each.default is MISSING}
    given |= named
    left = [each.name for each in fields(kind) if each.name not in given]
    assert len(args) <= len(left), f"{kind.__name__} takes {', '.join(left)}"
    return kind(**given, **dict(zip(left, args, strict=False)))


def _events(module: Any) -> dict[str, type[Any]]:
    """Events by the names of their commands: ReadMissed is read_missed."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(module.Event)}


class Stage:
    """Plays one scenario."""

    def __init__(self) -> None:
        self.world: Any = None
        self._shown = 0  # of the world's log
        self._report: Report | None = None

    def play(self, line: str) -> list[str]:
        """Perform a line of commands; returns what to show below it."""
        shown: list[str] = []
        quiet = line.startswith("given ")
        for command in line.removeprefix("given ").split("; "):
            shown += self._perform(*shlex.split(command))
            shown += self._effects()
        return [] if quiet else shown

    def _perform(self, name: str, *words: str) -> list[str]:
        pairs = [word.partition("=") for word in words]
        args = [value(word) for word, equals, _ in pairs if not equals]
        named = {word: value(given) for word, equals, given in pairs if equals}
        world = self.world
        if name in MACHINES:
            self._shown, self._report = 0, None
            self.world = MACHINES[name](*args, **named)
        elif name in ("at", "after"):
            world.now = float(args[0]) + (world.now if name == "after" else 0.0)
        elif name == "show":
            found = [(word, getattr(world.machine, word)) for word in words]
            return [" ".join(f"{word}={text(each(world.now) if callable(each) else each)}" for word, each in found)]
        elif isinstance(world, Keeper):
            world.call(name, args, named)
        elif callable(getattr(type(world), name, None)):
            getattr(world, name)(*args, **named)
        else:
            module, own = (of_syncer, OF_SYNCER) if isinstance(world, Bench) else (of_learner, OF_LEARNER)
            world.do(built(_events(module)[name], USUAL | own, args, named))
        return []

    def _effects(self) -> list[str]:
        log, shown = self.world.log, list[str]()
        for item in log[self._shown :]:
            line = item if isinstance(item, str) else self._effect(item)
            who, _, before = line.partition(" -> ")[0].rpartition(": ")
            if isinstance(item, str) and shown and re.match(f"{who}: .*> {before}$", shown[-1]):
                shown[-1] += " -> " + line.partition(" -> ")[2]  # it goes on from where it went
            else:
                shown.append(line)
        self._shown = len(log)
        return shown

    def _effect(self, item: Any) -> str:
        if isinstance(item, of_syncer.Emit | of_learner.Emit):
            return text(item.fact)
        if isinstance(item, of_syncer.Send):
            return f"{item.learner} {item.incarnation} <- {text(item.message, {'incarnation': item.incarnation})}"
        if isinstance(item, of_syncer.Append):
            return text(item, {"proposal": None})
        if isinstance(item, of_learner.Send) and isinstance(item.message, Report):
            before, self._report = self._report, item.message
            return text(item.message, vars(replace(before, sequence=before.sequence + 1)) if before else FIRST)
        return text(item.message if isinstance(item, of_learner.Send) else item)


def _syncer(*names: str, tokens: int | None = None, syncer_steps: int | None = 1000, **named: Any) -> Bench:
    by_hand = {f"{each}_itself": named.pop(each, "") != "by_hand" for each in ("merges", "journals")}
    own = {each: named.pop(each) for each in ("elements",) if each in named}
    budget = Budget(tokens, None if tokens else syncer_steps)
    return Bench(dict.fromkeys(names or "abc", 2), named.pop("K", 2), budget, named, **own, **by_hand)


MACHINES: dict[str, Callable[..., Any]] = {"syncer": _syncer, "learner": Loop, "controller": Keeper}

# ------------------------------------------------------------------ writing effects


def text(item: Any, usual: Mapping[str, Any] = {}) -> str:
    """An effect, fact, message or value in one line."""
    if isinstance(item, FragmentCounters):
        return "v{}@{}+{}/{}".format(*map(text, item))
    if isinstance(item, Participant):
        usually = {
            "processed": item.tokens,
            "age": 0,
            "codec": "",
            "digest": "digest",
            "steps": item.step - item.base_step,
        }
        rest = [f" {key}={text(getattr(item, key))}" for key in usually if getattr(item, key) != usually[key]]
        who, weight = f"{item.learner}.{item.incarnation}", text(item.weight)
        return f"{who} ({item.base_step},{item.step}] {item.tokens}t x{weight}" + "".join(rest)
    if is_dataclass(item):
        return " ".join([type(item).__name__, *_fields(item, usual)])
    if isinstance(item, tuple):
        parts = [f"({text(each)})" if type(each) is tuple or is_dataclass(each) else text(each) for each in item]
        return ",".join(parts) + "," * (len(item) == 1) if item else "empty"
    if isinstance(item, float):
        return f"{item:.6g}"
    if item is None or isinstance(item, bool):
        return str(item).lower()
    return f'"{item}"' if isinstance(item, str) and (not item or " " in item) else str(item)


def _fields(item: Any, usual: Mapping[str, Any]) -> Iterator[str]:
    for each in fields(item):
        found = getattr(item, each.name)
        skip = usual.get(each.name, USUAL.get(each.name, each.default))
        if found == skip and type(found) is type(skip):
            continue
        if is_dataclass(found):
            yield text(found) if len(fields(item)) == 1 else f"({text(found)})"
        else:
            yield text(found) if each.name in BARE else f"{each.name}={text(found)}"


# ------------------------------------------------------------------ whole texts


def scenarios(file: Path) -> dict[str, str]:
    """By claim; the file's first sentence as the first."""
    return {part.splitlines()[0].removeprefix("== "): part for part in re.split(r"(?m)^(?=== )", file.read_text())}


def replayed(scenario: str) -> str:
    """The same scenario with what its commands lead to now."""
    stage, lines = Stage(), []

    def watched(kind: type[Any], method: str, who: Callable[[Any], str], state: str) -> Any:
        made = getattr(kind, method)

        def move(machine: Any, *args: Any) -> None:
            before, after = (getattr(each, "value", each) for each in (getattr(machine, state), args[-1]))
            made(machine, *args)
            stage.world.log.append(f"{who(machine)}: {before} -> {after}")

        return patch.object(kind, method, move)

    with (
        watched(OpenStep, "move", lambda step: f"step {step.syncer_step}", "stage"),
        watched(Learner, "_enter", lambda learner: learner.name, "phase"),
        watched(Unit, "move", lambda unit: "unit", "state"),
    ):
        for line in scenario.splitlines():
            if line.startswith("    "):
                continue
            lines.append(line)
            if line and line[0] not in "#=":
                lines += [f"    {each}" for each in stage.play(line)]
    return "\n".join(lines) + "\n"
