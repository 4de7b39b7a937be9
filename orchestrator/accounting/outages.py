"""How the syncer's epochs ended, and how long nothing committed, for the summary. From the log alone."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.accounting.history import SYNCER, History
from orchestrator.eventlog.events import FaultInjected, SyncerLost
from outer.protocol.facts import SyncerStarted


@dataclass(frozen=True)
class Outage:
    """One epoch's end. Times are Unix seconds; None: it never came to that."""

    epoch: int
    kind: str  # kill | freeze | death
    injected: bool
    began: float  # when it was struck; where nobody says so, its last commit before it was noticed
    noticed: float | None
    served: float | None  # a later epoch has begun
    committed: float | None  # and commits


def outages(history: History) -> list[Outage]:
    """Every end of an epoch that was noticed, or that a fault was injected into, in the order of epochs."""
    struck = {said.fact.incarnation: said for said in history.of(FaultInjected) if said.fact.target == SYNCER}
    lost = {said.fact.epoch: said for said in history.of(SyncerLost)}
    found = []
    for epoch in sorted(struck.keys() | lost.keys()):
        fault, loss = struck.get(epoch), lost.get(epoch)
        if epoch not in history.epochs:
            continue  # it never came up: that is part of the outage before
        last = max((said.at for said in history.commits if said.incarnation == epoch), default=None)
        began = fault.at if fault is not None else last if last is not None else loss.at if loss is not None else 0.0
        served = min((said.at for said in history.of(SyncerStarted) if said.incarnation > epoch), default=None)
        committed = min((said.at for said in history.commits if said.fact.epoch > epoch), default=None)
        kind = fault.fact.fault_kind if fault is not None else "death"
        noticed = None if loss is None else loss.at
        found.append(Outage(epoch, kind, fault is not None, began, noticed, served, committed))
    return found
