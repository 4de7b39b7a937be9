"""The colours of the report and of the live page, by what they stand for.

They are those of Okabe and Ito, which colour-blind readers can tell apart; neighbours in a figure also differ in
lightness.
"""

from __future__ import annotations

ROLES: dict[str, tuple[str, str]] = {  # role: (light, dark)
    "ink": ("#1c2430", "#e8ebef"),
    "faint": ("#5b6572", "#a2abb6"),
    "rule": ("#d9dde3", "#39414c"),
    "paper": ("#fffffe", "#14181d"),
    "train": ("#0072b2", "#5cb3ea"),
    "held": ("#d55e00", "#ff9147"),
    "fault": ("#b3261e", "#ff8a80"),
    "recovery": ("#f4c7a1", "#6b4526"),
    # what a learner was doing
    "productive": ("#8dbfe0", "#33698f"),
    "placing": ("#c3c9d1", "#545e6b"),
    "importing": ("#f2dc7e", "#9a8431"),
    "compiling": ("#e69f00", "#c98b00"),
    "joining": ("#009e73", "#19b78b"),
    "draining": ("#44aa99", "#2f8376"),
    "frozen": ("#cc79a7", "#c678a5"),
    "expired": ("#d55e01", "#ff9148"),
    "dead": ("#3b4250", "#c5ccd5"),
    "wasted": ("#7a4a21", "#c08a5a"),
    "waiting": ("#f0e442", "#b8ae26"),
    "pending": ("#56b4e9", "#7cc6f2"),
    "unexplained": ("#e9ebee", "#2c333c"),
}


def variables(dark: bool) -> str:
    """The roles as custom properties of a style sheet."""
    return " ".join(f"--{role}: {colours[dark]};" for role, colours in ROLES.items())
