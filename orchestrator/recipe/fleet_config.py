"""The recipe's [fleet]: what `diloco plan` is told of hardware and links."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from outer.config import Section

LABEL = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"  # value of a node label, to Ray and to Kubernetes


class LinkConfig(Section):
    """The link between two regions."""

    between: tuple[str, str] = Field(description="two regions of [[pools]], of run.control or fleet.syncer_region")
    gbit_s: PositiveFloat = Field(description="each way, as far as this run may use it")
    latency_ms: NonNegativeFloat = Field(0.0, description="one way")
    price_per_gb: NonNegativeFloat | None = Field(None, description="in the currency of the pools' prices")


class FleetPoolConfig(Section):
    """What `diloco plan` needs to know of one learner of a pool."""

    name: str = Field(description="of one of [[pools]]")
    step_s: PositiveFloat | None = Field(
        None, le=86_400.0, description="seconds of a step of its learners without slowdown, instead of fleet.step_s"
    )
    chips: PositiveInt | None = Field(None, description="that fail independently; default: its accelerators, or 1")
    price_per_hour: NonNegativeFloat | None = Field(None, description="in any currency, the same for all pools")
    mtbf_hours: PositiveFloat | None = Field(
        None, le=1e9, description="mean time until it is lost, e.g. preempted; default: fleet.mtbf_hours / chips"
    )
    spot: float = Field(1.0, gt=0.0, le=1.0, description="share of the day in which it is available")


class FleetConfig(Section):
    """Settings for planning alone. A run does not read them, and its hash does not cover them."""

    step_s: PositiveFloat | None = Field(None, le=86_400.0, description="seconds of a step without a pool's slowdown")
    mtbf_hours: PositiveFloat = Field(8766.0, le=1e9, description="mean time between failures of one chip: a year")
    detect_s: NonNegativeFloat = Field(3.0, le=1e7, description="until a lost learner is noticed")
    replace_s: NonNegativeFloat = Field(600.0, le=1e7, description="mean time until its hardware is replaced")
    start_s: NonNegativeFloat = Field(60.0, le=1e7, description="process, imports, compiler, and a peer's state")
    syncer_region: str | None = Field(
        None, pattern=LABEL, description="of the syncer; default: on the first node with room"
    )
    links: tuple[LinkConfig, ...] = ()
    pools: tuple[FleetPoolConfig, ...] = ()

    @property
    def outage_s(self) -> float:
        """Mean seconds from a learner's loss to its next step."""
        return self.detect_s + self.replace_s + self.start_s
