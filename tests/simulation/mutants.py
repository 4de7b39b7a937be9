"""Every planted bug by its name: what the simulator and the checks are to find. Importing the places fills it."""

from __future__ import annotations

from tests.simulation.planted import (
    adopting,
    joining,
    learner_shells,
    links,
    logging,
    members,
    orchestrating,
    pipelining,
    recovering,
    regions,
    shells,
    steps,
    telling,
    units,
)
from tests.simulation.planting import MUTANTS, Mutant

__all__ = ["MUTANTS", "PLACES", "Mutant"]

PLACES = (steps, telling, members, recovering, joining, adopting, pipelining, logging, links, shells)
PLACES += (learner_shells, orchestrating, units, regions)
