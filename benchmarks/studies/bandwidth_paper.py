"""Gbit/s between datacenters for a compute utilisation: the closed forms, and the paper's table beside them.

Closed forms only, fitted to what the paper printed (section 9). bandwidth_model.py simulates what must cross the links.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Method = Literal["data_parallel", "decoupled"]

# Of a model that the paper calls 5B. 81 Gbit are 5.06 billion parameters in bf16; 0.76 is a fit.
PAPER_PARAMETERS = 5e9
DATA_PARALLEL_BITS = 81e9  # of bf16 gradients, in every step
DECOUPLED_BITS = 0.76e9  # of a bf16 fragment, in every step
FULL_BITS = 16  # bf16
# The share of a step during which nothing may be under way: the forward pass; two thirds of a step.
DATA_PARALLEL_CLOSED = 1 / 3
DECOUPLED_CLOSED = 2 / 3


def crossing(datacenters: int) -> float:
    """f = 2 (D - 1) / D: how often a bit that D datacenters reduce leaves each of them, and enters it."""
    return 2 * (datacenters - 1) / datacenters


def data_parallel(
    step_s: float, datacenters: int, utilisation: float, parameters: float = PAPER_PARAMETERS, bits: int = FULL_BITS
) -> float:
    """Bits per second, each way, that data-parallel training needs: 81 f / (s / CU - s / 3) at 5B, in Gbit/s."""
    moved = DATA_PARALLEL_BITS * (parameters / PAPER_PARAMETERS) * (bits / FULL_BITS)
    return crossing(datacenters) * moved / (step_s / utilisation - DATA_PARALLEL_CLOSED * step_s)


def decoupled(
    step_s: float, datacenters: int, utilisation: float, parameters: float = PAPER_PARAMETERS, bits: int = FULL_BITS
) -> float:
    """Bits per second, each way, by the paper's table: 0.76 f (bits / 16) / (s / CU - 2 s / 3) at 5B, in Gbit/s.

    It knows no P, H or tau: the paper's own, whatever they were.
    """
    moved = DECOUPLED_BITS * (parameters / PAPER_PARAMETERS) * (bits / FULL_BITS)
    return crossing(datacenters) * moved / (step_s / utilisation - DECOUPLED_CLOSED * step_s)


CLOSED_FORMS = {"data_parallel": data_parallel, "decoupled": decoupled}

# ------------------------------------------------------------------ what the paper printed

UTILISATIONS = (0.5, 0.75, 0.9, 0.95)
# (method, step in seconds, datacenters, bits): Gbit/s for the utilisations above, digit by digit (section 9).
_ROWS: dict[tuple[Method, float, int, int], str] = {
    ("data_parallel", 1.0, 2, 16): "49 81 104 113",
    ("data_parallel", 5.0, 2, 16): "9.5 16 21 23",
    ("data_parallel", 1.0, 8, 16): "85 140 183 198",
    ("decoupled", 1.0, 2, 16): ".58 1.2 1.7 1.9",
    ("decoupled", 5.0, 2, 16): ".12 .23 .34 .39",
    ("decoupled", 1.0, 8, 16): "1.0 2.0 3.0 3.3",
    ("decoupled", 1.0, 2, 4): ".15 .29 .43 .49",
    ("decoupled", 5.0, 2, 4): ".03 .06 .08 .10",
    ("decoupled", 1.0, 8, 4): ".26 .51 .75 .84",
}


@dataclass(frozen=True)
class Printed:
    """One cell of the paper's table, at 5B parameters."""

    method: Method
    step_s: float
    datacenters: int
    bits: int
    utilisation: float
    gbit_s: float
    half_digit: float  # half a unit of the last printed digit: what rounding may have hidden

    @property
    def closed(self) -> float:
        """Gbit/s by the closed form."""
        form = CLOSED_FORMS[self.method]
        return form(self.step_s, self.datacenters, self.utilisation, bits=self.bits) / 1e9

    def error(self, gbit_s: float) -> float:
        """How far another figure is from the printed one, as a share of it."""
        return gbit_s / self.gbit_s - 1.0

    def rounds_to(self, gbit_s: float) -> bool:
        """Whether the printed digits may be another figure's, rounded."""
        return abs(gbit_s - self.gbit_s) <= self.half_digit * (1 + 1e-9)


def _printed() -> tuple[Printed, ...]:
    return tuple(
        Printed(*row, utilisation, float(text), 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent))
        for row, texts in _ROWS.items()
        for utilisation, text in zip(UTILISATIONS, texts.split(), strict=True)
    )


PAPER = _printed()


def printed(
    method: Method, step_s: float, datacenters: int, bits: int, utilisation: float, parameters: float
) -> Printed | None:
    """The paper's cell for these, if it has one."""
    asked = (method, step_s, datacenters, bits, utilisation)
    cells = ((c.method, c.step_s, c.datacenters, c.bits, c.utilisation) for c in PAPER)
    return next(
        (c for c, key in zip(PAPER, cells, strict=True) if key == asked and parameters == PAPER_PARAMETERS), None
    )
