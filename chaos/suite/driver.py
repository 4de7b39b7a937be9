"""Drives one run through faults by the user's own commands, and reads from its log what became of each.

Whatever else uses the machine slows all down: it waits for conditions, for as long as the recipe's deadlines say.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import duckdb

from chaos.plans import KINDS
from orchestrator.analysis.folder import tables
from orchestrator.eventlog.reader import LogReader
from orchestrator.recipe.config import ON_SYNCER, SYNCER, Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.recipe.toml_text import load
from orchestrator.report.write import SUMMARY
from orchestrator.store.readers import object_of, status_if_any, status_of
from orchestrator.store.run_store import RUNS, RunStore

SMALL = Path(__file__).with_name("recipe.toml")  # struck where the user gives no other
HEADLESS, STOP = "kill-orchestrator", "stop"
PARTED = ("freeze", "link")  # what makes a learner silent
OF_SYNCER = tuple(f"{kind}-{SYNCER}" for kind in ON_SYNCER)
FAULTS = (*KINDS, *OF_SYNCER, HEADLESS, STOP)

FOR_EVER = 10**9  # syncer steps
QUIET_STEPS = 20  # of every learner before a fault, at least: what its pace is measured by
DELAY_S = 0.2  # of each step of a slow learner
LASTS_S = 5.0  # at least
BACKOFF_S_MAX, SYNCER_START_S = 30.0, 120.0  # as the orchestrator has them
ORCHESTRATOR_S = 120.0  # for another one to follow; and for a process to end
PATIENCE = 3.0  # so many times a bound is waited for: how late something was is worth knowing
POLL_S = 1.0
COMMAND_S = 3600.0  # a replay may take as long as the run
STEPS = "steps JOIN incarnations USING (who)"
MERGED = "contributions JOIN commits USING (position)"


class NoRun(Exception):
    """The run cannot begin or go on; the message says why."""


@dataclass(frozen=True)
class Struck:
    """One fault and what became of it. Times are Unix seconds from the log."""

    run: Driver
    fault: str  # of FAULTS
    since: float  # from here on everyone was well
    at: float
    back: float  # from here on what was struck works again
    bound_s: float  # for that, by the recipe's deadlines; from `healed` where a learner recovers
    lease_s: float  # of a learner that steps
    victim: str = ""  # a learner, or the syncer
    incarnation: int = 0  # of the victim when it was struck
    healed: float | None = None  # when a fault that ends by itself did
    until: float = 0.0  # from `at` to here the others are watched

    @property
    def lasted_s(self) -> float:
        return (self.healed or self.at) - self.at

    @property
    def late_s(self) -> float:
        """Seconds until it was back."""
        return self.back - (self.at if self.healed is None or self.victim == SYNCER else self.healed)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query of the log, in which $at, $back and so on are these fields."""
        return self.run.rows(query, **{name: value for name, value in vars(self).items() if f"${name}" in query})

    def pace(self) -> dict[str, float]:
        """For each other learner, its steps per second under the fault, by those of before. Waiting counts.

        Of two times the slower: until a lease would be over, and until it was back. Steps that lie partly in one count,
        so that one that waits for all of it is seen.
        """
        rate = "(count(*) FILTER ({0}) / sum(seconds + waited_s) FILTER ({0}))"
        ends = "$at + $lease_s", "$until" if self.victim in self.run.learners else "$back"
        soon, later = (rate.format(f"begun < {end} AND t > $at") for end in ends)
        soon, later = f"coalesce({soon}, 0)", f"coalesce({later}, 0)"
        ratio = f"least({soon}, {later}) / {rate.format('begun >= $since AND t <= $at')}"
        steps = f"SELECT *, t - seconds - waited_s AS begun FROM {STEPS} WHERE learner <> $victim"
        return dict(self.rows(f"SELECT learner, {ratio} FROM ({steps}) GROUP BY learner"))

    def commits(self) -> float:
        """The same of commits."""
        rate = "(count(*) FILTER (t > ${0} AND t <= ${1}) / (${1} - ${0}))"
        return float(
            self.rows(f"SELECT {rate.format('at', 'until')} / {rate.format('since', 'at')} FROM commits")[0][0]
        )


class Driver:
    """`given`: the user's recipe. `address`: of a Ray cluster; without one, a local Ray. `say`: told what is done.

    Raises InputError where the suite cannot strike such a recipe.
    """

    def __init__(self, given: Path, folder: Path | None, address: str | None, say: Callable[[str], None]) -> None:
        own = load(given)
        changed: dict[str, Any] = {"name": f"{own.name}-chaos", "budget.syncer_steps": FOR_EVER, "budget.tokens": ""}
        if own.durability.store:
            changed["durability.store"] = f"{own.durability.store.rstrip('/')}-chaos"
        kept = f"{own.run.folder.rstrip('/')}-chaos" if own.run.folder else RUNS / changed["name"]
        self.store = RunStore(folder or kept)
        changed["run.folder"] = self.store.root
        settings = [f"{key}={value}" for key, value in changed.items()]
        self.recipe = load(given, settings)
        if problems := list(_unfit(self.recipe)):
            raise InputError(problems)
        self.learners, self.address, self.say = set(self.recipe.learners), address, say
        self._command = ["run", str(given), *(f"--set={each}" for each in settings)]
        self._command += [f"--address={address}"] if address else []
        self._output = self.store.root.with_name(f"{self.store.root.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: duckdb.DuckDBPyConnection | None = None
        self._struck = 0

    # ------------------------------------------------------------------ the run

    def start(self, *options: str) -> None:
        """Begin or resume it, and wait until everyone steps. Raises NoRun."""
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with open(self._output, "ab") as output:
            command = [*_DILOCO, *self._command, *options]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=_ENV)
        self._all_step()

    def stop(self, patience_s: float | None = None) -> None:
        """Ask it to stop, and wait for its end, by default for a start of everything. Raises TimeoutExpired."""
        self.store.write_json("stop", {"reason": "the chaos suite"})
        self.say("waiting: the run stops, its learners save")
        self._running.wait(patience_s or PATIENCE * (ORCHESTRATOR_S + self.recipe.run.start_s))
        self._log = None

    def close(self) -> None:
        """End it, in order if that is possible."""
        interrupt = partial(self._running.send_signal, signal.SIGINT)
        for end in (partial(self.stop, ORCHESTRATOR_S), interrupt, interrupt, self._running.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self._running.poll() is None:
                    end()
                    self._running.wait(ORCHESTRATOR_S)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it has been started"
        return self._process

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Of the run, which is stopped for it."""
        if self._running.poll() is None:
            self.stop()
        return dict(object_of(self.store, SUMMARY) or {})

    @staticmethod
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        """What a `diloco` command comes to. Raises TimeoutExpired."""
        return subprocess.run([*_DILOCO, *words], env=_ENV, capture_output=True, text=True, timeout=COMMAND_S)

    # ------------------------------------------------------------------ its log

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Rows of a query of the log, as it was when it was last waited for."""
        self._log = self._log or tables(LogReader(self.store.root))
        return self._log.execute(query, values or None).fetchall()

    def one(self, query: str, **values: Any) -> Any:
        """The first value of a query; None where there is no row."""
        return next(iter(self.rows(query, **values)), (None,))[0]

    def until(self, condition: Callable[[], Any], what: str, bound_s: float) -> Any:
        """Wait for a condition; returns its first true value. Raises NoRun where the run ends or it takes too long."""
        self.say(f"waiting: {what}")
        began = time.monotonic()
        while True:
            self._log = None
            with contextlib.suppress(OSError):  # there is no log yet
                if found := condition():
                    return found
            if self._running.poll() is not None:
                raise NoRun(f"The run has ended. The end of what it said, in {self._output}:\n{self._tail()}")
            if (waited_s := time.monotonic() - began) > PATIENCE * bound_s:
                raise NoRun(f"Waited {waited_s:.0f} s in vain: {what}. See diloco status {self.store.root}")
            time.sleep(POLL_S)

    def _tail(self) -> str:
        return self._output.read_text(errors="replace")[-2000:]

    def _step_s(self) -> float:
        """Mean seconds of a step of the slowest learner."""
        means = f"SELECT avg(seconds + waited_s) AS mean FROM {STEPS} GROUP BY learner"
        return float(self.one(f"SELECT max(mean) FROM ({means})"))

    # ------------------------------------------------------------------ faults

    def _all_step(self) -> None:
        def stepping() -> bool:
            rows = (status_if_any(self.store) or {}).get("learners") or []
            return {row["name"] for row in rows if row["state"] == "stepping"} >= self.learners

        start_s = max(SYNCER_START_S, self.recipe.run.start_s) + self.recipe.run.start_s
        self.until(stepping, f"all {len(self.learners)} learners step", start_s)

    def _well(self) -> float:
        """Wait until everyone steps and takes part; returns the time from which on that is so."""
        self._all_step()
        since = self.until(lambda: self.one("SELECT max(t) FROM steps"), "their steps are in the log", LASTS_S)
        enough = f"SELECT learner FROM {STEPS} WHERE t > $since GROUP BY learner HAVING count(*) >= {QUIET_STEPS}"
        enough += f" INTERSECT SELECT learner FROM {MERGED} WHERE t > $since"
        self.until(
            lambda: {name for (name,) in self.rows(enough, since=since)} >= self.learners,
            f"each makes {QUIET_STEPS} steps more and takes part in a commit",
            self.recipe.run.hang_s + (QUIET_STEPS + 2 * self.recipe.sync.round_steps) * self._step_s(),
        )
        return float(since)

    def strike(self, fault: str) -> Struck:
        """Strike, and wait until everyone takes part again.

        Raises NoRun, and FileNotFoundError where the victim cannot be reached from here.
        """
        since, step_s = self._well(), self._step_s()
        lease_s = max(self.recipe.sync.lease_s, self.recipe.sync.lease_steps * step_s)
        if fault == HEADLESS:
            struck = self._behead(since, lease_s)
        elif fault == STOP:
            struck = self._resume(since, lease_s)
        else:
            struck = self._inject(fault, since, self.recipe.sync.round_steps * step_s, lease_s)
        until = max(struck.back, struck.healed or 0.0, struck.at + 3.0 * lease_s)
        each = f"SELECT max(t) AS t FROM {STEPS} GROUP BY learner UNION ALL SELECT max(t) FROM commits"
        last = f"SELECT min(t) FROM ({each})"
        self.until(lambda: self.one(last) > until, "everyone steps, and commits go on", struck.bound_s + 3.0 * lease_s)
        return replace(struck, until=until)

    def _inject(self, fault: str, since: float, round_s: float, lease_s: float) -> Struck:
        kind, _, whom = fault.partition("-") if fault in OF_SYNCER else (fault, "", "")
        victim, run = whom or sorted(self.learners)[self._struck % len(self.learners)], self.recipe.run
        self._struck += 1
        row = KINDS[kind]
        lasts_s = max(LASTS_S, min(3.0 * lease_s, run.hang_s / 2.0 if kind in PARTED else math.inf))
        if whom:
            lasts_s = 2.0 * run.syncer_lease_s + LASTS_S  # long enough to be replaced
            bound_s = run.syncer_lease_s + max(SYNCER_START_S, run.start_s) + 2.0 * round_s
        elif row.lasts:
            bound_s = run.hang_s + 2.0 * round_s
        else:
            starts = 2 if kind == "wrong_config" else 1
            bound_s = run.hang_s + starts * (BACKOFF_S_MAX + run.start_s) + 4.0 * round_s
        before = self.one("SELECT count(*) FROM FaultInjected")
        self.say(f"{fault}: striking {victim}")
        options = [f"--seconds={lasts_s}"] * row.lasts + [f"--delay={DELAY_S}"] * row.delays
        told = self.command("chaos", "inject", kind, victim, str(self.store.root), *options)
        if told.returncode:
            raise NoRun(f"{fault} could not be struck: {told.stdout}{told.stderr}")
        newest = "position = (SELECT max(position) FROM FaultInjected)"
        recovered = f"SELECT recovery_s FROM fault_rows WHERE {newest} AND recovery_s > 0"
        self.until(lambda: self.one("SELECT count(*) FROM FaultInjected") > before, "the fault is in the log", LASTS_S)
        recovery_s = self.until(
            lambda: self.one(recovered),
            f"{victim} works again and something of it is committed; by the recipe's deadlines within {bound_s:.0f} s",
            bound_s + lasts_s * row.lasts,
        )
        ((at, incarnation, number),) = self.rows(f"SELECT t, incarnation, fault FROM FaultInjected WHERE {newest}")
        over = "SELECT t FROM FaultHealed WHERE fault = $number"
        healed = self.until(lambda: self.one(over, number=number), "the fault is over", bound_s) if row.lasts else None
        return Struck(self, fault, since, at, at + recovery_s, bound_s, lease_s, victim, incarnation, healed)

    def _behead(self, since: float, lease_s: float) -> Struck:
        """Kill the orchestrator, which is no target of chaos: its process, as an operator would."""
        pid = status_of(self.store)["orchestrator"]["pid"]
        if "Orchestrator" not in Path(f"/proc/{pid}/cmdline").read_text():
            raise FileNotFoundError(f"process {pid} of this host is not the orchestrator")
        self.say(f"{HEADLESS}: killing process {pid}")
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        followed = "SELECT max(t) FROM OrchestratorFollowed WHERE t > $at"
        back = self.until(lambda: self.one(followed, at=at), "another orchestrator follows", ORCHESTRATOR_S)
        return Struck(self, HEADLESS, since, at, back, ORCHESTRATOR_S, lease_s)

    def _resume(self, since: float, lease_s: float) -> Struck:
        self.stop()
        at = self.one("SELECT max(t) FROM RunFinished")
        self.say(f"{STOP}: the same command resumes the run")
        self.start()
        start_s = self.recipe.run.start_s
        return Struck(self, STOP, since, at, self._well(), max(SYNCER_START_S, start_s) + start_s, lease_s)


def _unfit(recipe: Recipe) -> Iterator[Problem]:
    """List why the suite cannot strike this recipe."""
    count = len(recipe.learners)
    if count < 2:
        fix = "give a pool more learners: one alone has no other that could go on"
        yield Problem("pools", count, "must have at least two learners in all", fix)
    elif recipe.quorum >= count:
        fix = f"lower it to {count - 1} or less: with everyone needed, commits rightly wait for one that is away"
        yield Problem("sync.quorum", recipe.sync.quorum, f"must be below the number of learners, {count}", fix)
    if any(pool.joined for pool in recipe.pools) or recipe.sync.overlap == "strict":
        fix = "give the suite a recipe whose learners all start with the run, and wait for nobody"
        yield Problem("pools", "joined, or overlap = strict", "is nothing that the suite strikes", fix)
    if recipe.chaos.active:
        fix = "leave the section out, or give the suite a copy without it"
        yield Problem("chaos", "[chaos]", "must plan no fault: the suite strikes by itself", fix)


_DILOCO = (sys.executable, "-m", "orchestrator")
_PATHS = filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
_ENV = os.environ | {"PYTHONPATH": os.pathsep.join(_PATHS)}
