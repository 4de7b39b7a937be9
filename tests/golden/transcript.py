"""A short run of both machines, in words. To write the checked-in file anew, after a change that is meant:

    python -m tests.golden.transcript > tests/golden/transcript.txt

Two learners that step alike, two fragments in rounds of four syncer steps, K = 1. Learner b is killed after its
third step and comes back as incarnation 2; the budget is eight syncer steps. Reports are left out, but for phases.
"""

from __future__ import annotations

from outer.config import SyncConfig
from outer.protocol.syncer import Budget
from tests.golden.world import World


def lines() -> list[str]:
    sync = SyncConfig.model_validate({"P": 2, "H": 4, "tau": 2, "grace": 0.25, "read_timeout_s": 1.0})
    world = World(sync=sync, learners={"a": 1.0, "b": 1.0}, quorum=1, budget=Budget(None, 8))
    world.start("a")
    world.start("b")
    world.at(3.5, lambda: world.kill("b"))
    world.at(3.75, lambda: world.bury("b"))
    world.at(4.75, lambda: world.start("b"))
    world.run(20.0)
    assert {unit.exited for unit in world.units.values()} == {"syncer step 8 is reached"}
    return [short(line) for line in world.lines if " hears Report(" not in line]


def short(line: str) -> str:
    """Without what is the same in every line."""
    for noise in ("epoch=1, ", ", digest='digest'", ", payload={}", ", detail=''", ", defect=''"):
        line = line.replace(noise, "")
    return line.rstrip()


if __name__ == "__main__":
    print("\n".join(lines()))
