"""What the commands that write synthetic tapes have in common: where one may lie, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from orchestrator.store.run_store import RunStore


def of_folder(store: RunStore) -> Iterator[Problem]:
    """Why no tape can be written there."""
    if not store.empty or store.root.is_file():
        yield Problem("FOLDER", str(store.root), "is there already, and not empty", "give another folder")


def told(recipe: Recipe, store: RunStore, seed: int, virtual_s: float, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` prints of any tape."""
    return {
        "name": recipe.name,
        "folder": str(store.root),
        "config_hash": recipe.config_hash,
        "seed": seed,
        "virtual_s": round(virtual_s, 3),
        "syncer_steps": summary["syncer_steps"],
        "commits": summary["commits"],
        "tokens": summary["tokens"],
        "participation": summary["participation"],
        "availability": summary["availability"],
        "injected": dict(Counter(fault["kind"] for fault in summary["faults"] if fault["injected"])),
    }


def words(told: Mapping[str, Any], how: str, *more: str) -> str:
    """The same for people. `how` it was simulated."""
    share, tokens = told["participation"]["mean"], told["tokens"]
    return "\n".join(
        [
            f"{told['name']}: {told['commits']:,} commits in {told['syncer_steps']:,} syncer steps, simulated with "
            f"seed {told['seed']} {how}",
            f"  {told['virtual_s']:,.0f} virtual seconds; {tokens['committed']:,} of {tokens['processed']:,} tokens "
            f"committed; {share:.1%} participation",
            *more,
            f"  train by it: diloco replay {told['folder']}",
        ]
    )


def counted(whose: str, faults: Mapping[str, int]) -> list[str]:
    """A line of how often each kind of fault struck; none where none did."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    return [f"  {whose}: {kinds}"] if faults else []
