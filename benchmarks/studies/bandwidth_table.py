"""Gbit/s cell by cell: the closed form, the conserving simulation at a P, H and tau, and the paper's beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.studies.bandwidth_model import DataParallel, Fleet, even, needed
from benchmarks.studies.bandwidth_paper import CLOSED_FORMS, FULL_BITS, PAPER_PARAMETERS, Method, printed

GBIT = 1e9


@dataclass(frozen=True)
class Exchange:
    """What the conserving simulation is told beside a cell's own settings. Defaults: the paper's."""

    parameters: float = PAPER_PARAMETERS
    fragments: int = 24  # P
    round_steps: int = 24  # H
    overlap_steps: int = 2  # tau
    latency_s: float = 0.0  # one way


@dataclass(frozen=True)
class Cell:
    """One figure three times; Gbit/s each way between datacenters."""

    method: Method
    step_s: float
    datacenters: int
    bits: int
    utilisation: float
    gbit_s: float  # by the closed form
    conserving_gbit_s: float | None  # by simulation; None: the latency forbids it at any bandwidth
    paper_gbit_s: float | None  # None: not in its table
    error: float | None  # of the closed form, as a share of the paper's
    rounds_to_paper: bool | None  # the paper's digits may be the closed form's, rounded


def cells(
    steps_s: Sequence[float],
    datacenters: Sequence[int],
    bits: Sequence[int],
    utilisations: Sequence[float],
    exchange: Exchange = Exchange(),
) -> Iterator[Cell]:
    """Data-parallel training in bf16 first, then Decoupled for each number of bits."""
    kinds: list[tuple[Method, int]] = [("data_parallel", FULL_BITS), *(("decoupled", each) for each in bits)]
    for (method, width), step_s, count, utilisation in product(kinds, steps_s, datacenters, utilisations):
        yield _cell(method, step_s, count, width, utilisation, exchange)


def _cell(method: Method, step_s: float, count: int, bits: int, utilisation: float, exchange: Exchange) -> Cell:
    closed = CLOSED_FORMS[method](step_s, count, utilisation, exchange.parameters, bits) / GBIT
    conserving = needed(fleet_of(method, step_s, count, bits, exchange), utilisation)
    paper = printed(method, step_s, count, bits, utilisation, exchange.parameters)
    return Cell(
        method=method,
        step_s=step_s,
        datacenters=count,
        bits=bits,
        utilisation=utilisation,
        gbit_s=closed,
        conserving_gbit_s=None if conserving is None else conserving / GBIT,
        paper_gbit_s=None if paper is None else paper.gbit_s,
        error=None if paper is None else paper.error(closed),
        rounds_to_paper=None if paper is None else paper.rounds_to(closed),
    )


def fleet_of(method: Method, step_s: float, count: int, bits: int, exchange: Exchange) -> Fleet | DataParallel:
    """What is simulated for a cell; its bandwidth is what is searched for."""
    if method == "data_parallel":
        return DataParallel(step_s, count, GBIT, exchange.parameters, bits, exchange.latency_s)
    sizes = even(exchange.parameters, exchange.fragments)
    steps, overlap, latency_s = exchange.round_steps, exchange.overlap_steps, exchange.latency_s
    return Fleet(step_s, count, GBIT, sizes, steps, overlap, bits, bits, latency_s)
