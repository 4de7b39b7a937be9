"""Traffic over the declared links between regions, against their capacity: on average, and for one fragment in time.

Every learner exchanges with the syncer, so the only pairs are a learners' region and the syncer's. Regions are those of
the recipe's pools, wherever the plan places them. Knows payloads alone, as traffic.py does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.planner.sizing.rates import floor_s
from orchestrator.planner.sizing.traffic import Flow, Traffic
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.fleet_config import LinkConfig
from orchestrator.recipe.problems import Problem
from outer.config import SyncConfig
from outer.protocol.leases import longest_s

SHARE = 0.8  # of a link, on average, above which bursts and other traffic make fragments late


@dataclass(frozen=True)
class LinkLoad:
    """One region's learners on their way to the syncer's region, and back. Bits per second each way."""

    region: str
    syncer_region: str
    learners: int
    up_bytes: float  # of all its learners, per syncer step on average
    down_bytes: float  # once for all of them: one brings a version, the others get it there
    up_bits: float | None  # per second, on average; None: the step's length is not given
    down_bits: float | None
    link_bits: float | None  # declared; None: it is not
    latency_s: float
    fragment_s: float | None  # until the largest fragment of all of them is up, merged at once, and down again
    window_s: float | None  # tau steps, in which that should be over
    contribution_s: float | None  # until the largest one is up, alone on the link
    version_s: float | None  # until the largest one is down; None as above
    whole_bytes: int  # of the largest fragment in float32, by which its deadlines grow
    joining_bytes: int  # of a peer's or the syncer's state
    joining_s: float | None  # until one learner that joins has a peer's or the syncer's state, over this link alone

    @property
    def share(self) -> float | None:
        """Of the link, in its busier direction."""
        if self.up_bits is None or self.down_bits is None or self.link_bits is None:
            return None
        return max(self.up_bits, self.down_bits) / self.link_bits


def of_regions(
    recipe: Recipe, traffic: Traffic, syncer_region: str | None, step_s: float | None, whole_bytes: int = 0
) -> tuple[LinkLoad, ...]:
    """A load for each region of the recipe's pools but the syncer's own.

    `step_s`: of a syncer step, if known. `whole_bytes`: of the largest fragment in float32.
    """
    hub = syncer_region or home(recipe)
    counted = Counter(pool.region for pool in recipe.learners.values() if pool.region not in (None, hub))
    if hub is None:
        return ()
    links = {frozenset(link.between): link for link in recipe.fleet.links}
    return tuple(
        _load(
            str(region), hub, count, links.get(frozenset((str(region), hub))), recipe.sync, traffic, step_s, whole_bytes
        )
        for region, count in sorted(counted.items(), key=lambda item: str(item[0]))
    )


def home(recipe: Recipe) -> str | None:
    """The region in which the syncer is counted where nothing else says: the recipe's word, else most learners'."""
    most = Counter(pool.region for pool in recipe.learners.values() if pool.region is not None).most_common(1)
    return recipe.fleet.syncer_region or recipe.run.control.get("region") or (most[0][0] if most else None)


def _load(
    region: str,
    hub: str,
    learners: int,
    link: LinkConfig | None,
    sync: SyncConfig,
    traffic: Traffic,
    step_s: float | None,
    whole_bytes: int,
) -> LinkLoad:
    up, down = traffic.learner_up, traffic.learner_down
    bits, latency_s = (None, 0.0) if link is None else (link.gbit_s * 1e9, link.latency_ms / 1e3)
    joining = max(traffic.joining_bytes, traffic.donation_bytes or 0)
    return LinkLoad(
        region=region,
        syncer_region=hub,
        learners=learners,
        up_bytes=learners * up.per_step_bytes,
        down_bytes=down.per_step_bytes,
        up_bits=_times(up, learners),
        down_bits=down.per_second_bits,
        link_bits=bits,
        latency_s=latency_s,
        fragment_s=None if bits is None else 8 * (learners * up.peak_bytes + down.peak_bytes) / bits + 2 * latency_s,
        window_s=None if step_s is None else sync.overlap_steps * step_s,
        contribution_s=None if bits is None else 8 * up.peak_bytes / bits + 2 * latency_s,
        version_s=None if bits is None else 8 * down.peak_bytes / bits + 2 * latency_s,
        whole_bytes=whole_bytes,
        joining_bytes=joining,
        joining_s=None if bits is None else 8 * joining / bits + latency_s,
    )


def _times(flow: Flow, learners: int) -> float | None:
    return None if flow.per_second_bits is None else learners * flow.per_second_bits


# ------------------------------------------------------------------ what breaks


def limits(loads: Sequence[LinkLoad], sync: SyncConfig) -> Iterator[Problem]:
    """A link that cannot carry the mean, so that what becomes due is not over before more of it does; or one fragment
    in time.
    """
    for load in loads:
        for field, deadline_s, what, takes_s in (
            ("sync.read_timeout_s", sync.read_timeout_s, "contribution", load.contribution_s),
            ("sync.transfer_s", sync.transfer_s, "version", load.version_s),
        ):
            if takes_s is not None and takes_s > longest_s(deadline_s, load.whole_bytes):
                enough = floor_s(load.learners * takes_s, load.whole_bytes)
                yield Problem(
                    field,
                    deadline_s,
                    f"one {what} of the largest fragment takes {takes_s:.3g} s between {load.region} and "
                    f"{load.syncer_region}: every one would be late",
                    f"set {field} above {enough:.3g}, which is enough for all of {load.region} at once",
                )
        if load.share is not None and load.share > 1.0:
            busier = max(load.up_bits or 0.0, load.down_bits or 0.0)
            yield Problem(
                f"fleet.links {load.region} - {load.syncer_region}",
                f"{(load.link_bits or 0.0) / 1e9:g} Gbit/s",
                f"{load.learners} learners of {load.region} need {busier / 1e9:.3g} Gbit/s in the mean: contributions "
                "and versions would come ever later",
                f"set sync.H to at least {needed_round(load, sync.round_steps)}, or have "
                f"{busier / SHARE / 1e9:.3g} Gbit/s",
            )


def warnings(loads: Sequence[LinkLoad], sync: SyncConfig) -> Iterator[Problem]:
    """Links that are nearly full, fragments that outlast their overlap, links of which nothing is said."""
    declared = any(load.link_bits is not None for load in loads)
    half = ', or sync.codec = "bf16"' if sync.codec.startswith("fp32") else ""
    for load in loads:
        field = f"fleet.links {load.region} - {load.syncer_region}"
        if load.link_bits is None and declared:
            fix = f'add [[fleet.links]] between = ["{load.region}", "{load.syncer_region}"]'
            yield Problem(field, None, f"is not declared, and {load.learners} learners use it: it is not checked", fix)
        if load.share is not None and SHARE < load.share <= 1.0:
            fix = f"set sync.H to at least {needed_round(load, sync.round_steps)}, or have a wider link"
            yield Problem(field, None, f"is {load.share:.0%} full in the mean: bursts come late", fix)
        late = load.fragment_s is not None and load.window_s is not None and load.fragment_s > load.window_s
        if late and sync.overlap_steps and (load.share or 0.0) <= 1.0:
            steps = math.ceil(load.fragment_s / load.window_s * sync.overlap_steps)  # type: ignore[operator]
            yield Problem(
                "sync.tau",
                sync.overlap_steps,
                f"the largest fragment of {load.learners} learners of {load.region} takes {load.fragment_s:.3g} s up "
                f"and down, tau steps last {load.window_s:.3g} s: syncer steps open later than they are due",
                f"set sync.tau to {steps}{half}, or more fragments (sync.P)",
            )


def needed_round(load: LinkLoad, round_steps: int) -> int:
    """The H at which the link is `SHARE` full on average."""
    return math.ceil(round_steps * (load.share or 0.0) / SHARE)
