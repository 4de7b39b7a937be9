"""How much of the machines and shells the simulator alone gets to: coverage, file by file, and what is missing.

    python benchmarks/reach.py [--seeds 1..8] [--write]

Over these seeds of every profile in PROFILES: branches of the machines, lines of the shells. `--write` renews the
totals in docs/simulation.md. The exit code is 1 if less than REACH_MIN percent are reached, or if a promise breaks.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

REACH_MIN = {"machines": 95.0, "shells": 95.0}
PROFILES = (
    "mixed", "lockstep", "ended", "joining", "confusion", "shards", "sessions", "storage", "rebuilding", "membership",
    "hosts", "network", "payloads", "standbys", "islands",
)  # fmt: skip
PAGE = ROOT / "docs" / "simulation.md"
BEGIN, END = "<!-- reach: written by python benchmarks/reach.py --write -->", "<!-- end of reach -->"
MACHINES = {
    "outer/protocol": (
        "coverage", "effect_buffer", "leases", "members", "open_step", "quorum", "recorder", "recovery",
        "sample_spans", "schedule", "sessions", "syncer",
    ),
    "learners/protocol": ("adoption", "held_spans", "joining", "learner", "staged_reads", "step_timer"),
}  # fmt: skip
SHELLS = {
    "outer": ("bulk", "epoch", "log_feed", "relays", "shard", "shell", "snapshots"),
    "outer/journal": ("chain", "journal", "journal_writer", "rebuild", "values"),
    "learners": ("checkpoint_writer", "fetcher", "link", "rank", "shell", "step_runner"),
    "orchestrator/lifecycle": (
        "actions", "checkpointer", "controller", "learner_manager", "learner_units", "orchestrator", "patience",
        "pools", "scaling", "standbys", "syncer_manager",
    ),
}  # fmt: skip
NUMBERS = "values are the world's: no array is merged, encoded or extended"
OURS = "a fault of our own code, which no seed may have"
REASONS = {  # why the simulator does not get there, or hardly ever
    "Learner._boundary": "a loop that asks again after Exit: the simulated one is over",
    "Learner._on_state": "a state that comes after the Stop which ended the joining: rare",
    "Learner._on_state_missed": "the same of a state that does not come",
    "StagedReads.stage": "in strict overlap a read of a step yet to come: with K = all every learner has finished it",
    "FragmentShard._parameters": NUMBERS,
    "FragmentShard._checked": NUMBERS,
    "Fetcher._read": NUMBERS,
    "LearnerShell._fail": OURS,
    "LearnerShell._handled": OURS,
    "LearnerManager._fail": OURS,
    "SyncerShell._drive": OURS,
}


def measure(seeds: range) -> tuple[dict[str, Any], list[str]]:
    """coverage.py's own report, and every check that failed."""
    rooms = [*MACHINES.items(), *SHELLS.items()]
    files = [str(ROOT / room / f"{name}.py") for room, names in rooms for name in names]
    coverage = Coverage(data_file=None, config_file=False, branch=True, include=files)
    coverage.exclude("if TYPE_CHECKING:")
    coverage.start()
    try:
        from chaos.simulation.runner import run  # the machines' modules are loaded under its eyes

        tallies = {profile: run(seeds, profile)[0] for profile in PROFILES}
    finally:
        coverage.stop()
    broken = [
        f"profile {profile} seed {seed}  {promise}: {reason}"
        for profile, tally in tallies.items()
        for seed, promise, reason in tally.violations
    ]
    with tempfile.NamedTemporaryFile("r") as report:
        coverage.json_report(outfile=report.name)
        told: dict[str, Any] = json.load(report)
    return told, broken


def share(told: dict[str, Any], group: str) -> tuple[float, int, int]:
    """Percent reached of a group's lines, of machines also of branches; lines, and branches."""
    rooms = MACHINES if group == "machines" else SHELLS
    paths = {f"{room}/{name}.py" for room, names in rooms.items() for name in names}
    found = [each["summary"] for name, each in told["files"].items() if _path(name) in paths]
    lines, branches = (sum(each[key] for each in found) for key in ("num_statements", "num_branches"))
    reached = sum(each["covered_lines"] for each in found)
    if group == "shells":
        return 100.0 * reached / lines, lines, 0
    return 100.0 * (reached + sum(each["covered_branches"] for each in found)) / (lines + branches), lines, branches


def headline(told: dict[str, Any], seeds: range) -> str:
    machines, shells = share(told, "machines"), share(told, "shells")
    reached = f"{machines[0]:.1f} % of {machines[1]:,} lines and {machines[2]:,} branches of the machines"
    of_shells = f"{shells[0]:.1f} % of {shells[1]:,} lines of the shells"
    return f"Seeds {seeds[0]} to {seeds[-1]} of {len(PROFILES)} profiles: {reached}, {of_shells}."


def _path(name: str) -> str:
    return str(Path(name).resolve().relative_to(ROOT))


def table(told: dict[str, Any]) -> str:
    """The files that are not reached completely."""
    rows = [
        "|file|lines|branches|reached %|not reached|",
        "|---|---|---|---|---|",
    ]
    for name, file in sorted(told["files"].items()):
        path, summary = _path(name), file["summary"]
        if summary["percent_covered"] == 100.0:
            continue
        missing = "; ".join(_missing(file))
        rows.append(
            f"|{path}|{summary['num_statements']}|{summary['num_branches']}|{summary['percent_covered']:.1f}|{missing}|"
        )
    return "\n".join(rows)


def _missing(file: dict[str, Any]) -> list[str]:
    """Functions by the reason why they are not reached."""
    found: dict[str, list[str]] = {}
    for function, part in file["functions"].items():
        if part["missing_lines"] or part["missing_branches"]:
            found.setdefault(REASONS.get(function, "not at these seeds"), []).append(f"`{function}`")
    return [f"{', '.join(functions)}: {reason}" for reason, functions in found.items()]


def write(block: str) -> None:
    page = PAGE.read_text()
    renewed, places = re.subn(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)
    if places != 1:
        raise SystemExit(f"{PAGE} must have the lines {BEGIN!r} and {END!r} once each")
    PAGE.write_text(renewed)


def _seeds(text: str) -> range:
    first, last = map(int, text.split(".."))
    return range(first, last + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default="1..8", metavar="A..B")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    told, broken = measure(options.seeds)
    text = headline(told, options.seeds)
    print("\n".join([text, "", table(told), *broken]))
    if options.write:
        write(f"{BEGIN}\n\n{text}\n\n{END}")
    short = any(share(told, group)[0] < least for group, least in REACH_MIN.items())
    sys.exit(1 if broken or short else 0)


if __name__ == "__main__":
    main()
