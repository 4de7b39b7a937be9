"""The catalog as the table of docs/metrics.md: `python -m orchestrator.telemetry.table` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.telemetry.catalog import CATALOG, KINDS, PREFIX, Label

SHOWN_MAX = 16  # values of one label that are written out


def table() -> str:
    """Markdown, a row for each metric, under the names that Prometheus sees."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "|metric|kind|labels|meaning|"
    yield "|---|---|---|---|"
    for metric in CATALOG.values():
        labels = "; ".join(_label(label) for label in metric.labels)
        yield f"|`{PREFIX}{metric.name}`|{metric.kind}|{labels}|{metric.help}|"


def _label(label: Label) -> str:
    if not label.values:
        return label.name
    if label.values == KINDS:
        return f"{label.name}: a fact's"
    assert len(label.values) <= SHOWN_MAX, f"{label.name} has too many values for a table"
    return f"{label.name}: {', '.join(label.values)}"


if __name__ == "__main__":
    print(table(), end="")
