"""Sizes, rates and tables as the plan prints them."""

from __future__ import annotations

from rich.table import Table

from orchestrator.store.status_text import DASH


def amount(size: float | None) -> str:
    """Bytes in a unit that suits them."""
    if size is None:
        return DASH
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size:.0f} B"


def rate(bits: float | None) -> str:
    if bits is None:
        return DASH
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.0f} bit/s"


def grid(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=index > 0 and index >= left)
    return table
