"""The context that the parts of one hostile run share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.oracle import Oracle
from chaos.simulation.ports.damage import Damage
from chaos.simulation.ports.network import HostileNetwork
from chaos.simulation.ports.storage import Store
from chaos.simulation.profile import Options
from orchestrator.simulation.context import SimContext


@dataclass(kw_only=True)
class HostileContext(SimContext):
    """`rng` is drawn from for what hosts do: how long steps last, which payloads are damaged."""

    network: HostileNetwork
    store: Store
    faults: Damage
    observer: Invariants
    options: Options
    oracle: Oracle
    rng: Random
