"""How much of the two machines the simulator alone gets to: branch coverage, file by file, and what is missing.

    python benchmarks/reach.py [--seeds 1..60] [--write]

Over these seeds of every profile in PROFILES. `--write` renews the total in docs/simulation.md. The exit code is 1 if
less than REACH_MIN percent of lines and branches are reached, or if a promise breaks on the way.
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

REACH_MIN = 98.0
PROFILES = ("mixed", "lockstep", "ended", "joining", "confusion")
PAGE = ROOT / "docs" / "simulation.md"
BEGIN, END = "<!-- reach: written by python benchmarks/reach.py --write -->", "<!-- end of reach -->"
MACHINES = {
    "outer/protocol": (
        "coverage", "effect_buffer", "leases", "members", "open_step", "quorum", "recorder", "recovery",
        "sample_spans", "schedule", "sessions", "syncer",
    ),
    "learners/protocol": ("adoption", "held_spans", "joining", "learner", "staged_reads", "step_timer"),
}  # fmt: skip
SAVING = (
    "Adoption.state", "Adoption.restore", "HeldSpans.state", "HeldSpans.restore", "Learner.resume", "Learner.may_save",
    "Learner.held_versions", "Learner._enter", "Learner._on_compiled", "Learner._on_grant", "Learner._note_snapshot",
    "Learner._save_if_due", "EffectBuffer.send", "SpanPool.of", "SpanPool.state", "Syncer.marker",
    "Syncer._on_snapshot",
)  # fmt: skip
ANSWERED_TWICE = "a shell that answers one Recover twice: the simulated one does not"
REASONS = {  # why the simulator does not get there, or hardly ever
    "Joining.miss": ANSWERED_TWICE,
    "Joining.receive": ANSWERED_TWICE,
    "Learner._boundary": "a loop that asks again after Exit: the simulated one is over",
    "Learner._on_state": "a state that comes after the Stop which ended the joining: rare",
    "Learner._on_state_missed": "the same of a state that does not come",
    "StagedReads.stage": "in strict overlap a read of a step yet to come: with K = all every learner has finished it",
    "JournalReplay.apply": "a journal with a hole: the simulated store loses nothing that it has acknowledged",
    **dict.fromkeys(SAVING, "snapshots and suspension are not simulated"),
}


def measure(seeds: range) -> tuple[dict[str, Any], list[str]]:
    """coverage.py's own report, and every check that failed."""
    files = [str(ROOT / room / f"{name}.py") for room, names in MACHINES.items() for name in names]
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


def headline(told: dict[str, Any], seeds: range) -> str:
    names = ", ".join(f"`{profile}`" for profile in PROFILES)
    reached = f"{told['totals']['percent_covered']:.1f} % of {_size(told['totals'])} in {len(told['files'])} files"
    return f"Seeds {seeds[0]} to {seeds[-1]} of {names}: {reached}."


def table(told: dict[str, Any]) -> str:
    """The files that are not reached completely."""
    rows = [
        "|file|lines|branches|reached %|not reached|",
        "|---|---|---|---|---|",
    ]
    for name, file in sorted(told["files"].items()):
        path, summary = Path(name).resolve().relative_to(ROOT), file["summary"]
        if summary["percent_covered"] == 100.0:
            continue
        missing = "; ".join(_missing(file))
        rows.append(
            f"|{path}|{summary['num_statements']}|{summary['num_branches']}|{summary['percent_covered']:.1f}|{missing}|"
        )
    return "\n".join(rows)


def _size(totals: dict[str, Any]) -> str:
    return f"{totals['num_statements']:,} lines and {totals['num_branches']:,} branches"


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
    parser.add_argument("--seeds", type=_seeds, default="1..60", metavar="A..B")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    told, broken = measure(options.seeds)
    text = headline(told, options.seeds)
    print("\n".join([text, "", table(told), *broken]))
    if options.write:
        write(f"{BEGIN}\n\n{text}\n\n{END}")
    sys.exit(1 if broken or told["totals"]["percent_covered"] < REACH_MIN else 0)


if __name__ == "__main__":
    main()
