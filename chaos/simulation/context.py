"""What the parts of one hostile run share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from chaos.simulation.damage import Damage
from chaos.simulation.invariants import Invariants
from chaos.simulation.network import HostileNetwork
from chaos.simulation.oracle import Oracle
from chaos.simulation.profile import Options
from orchestrator.simulation.context import SimContext


@dataclass(kw_only=True)
class HostileContext(SimContext):
    """`rng` is drawn from for what hosts do: how long steps last, which payloads are damaged."""

    network: HostileNetwork
    faults: Damage
    observer: Invariants
    options: Options
    oracle: Oracle
    rng: Random
