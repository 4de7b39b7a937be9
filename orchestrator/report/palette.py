"""The report's colours by role, for light paper and dark screens.

Hues are those of Okabe and Ito, chosen to be told apart by colour-blind readers; neighbours in a figure differ in
lightness too. A figure is drawn in the light colours, each used by one role only; its SVG then names the role, and
the page's style sheet says what it looks like.
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
    # shares, from none to all
    "share0": ("#f6f7f9", "#1f252c"),
    "share1": ("#d7e6f2", "#22384a"),
    "share2": ("#b0d0e8", "#275069"),
    "share3": ("#7fb2d8", "#2f6f96"),
    "share4": ("#3f8abf", "#3f86b0"),
    "share5": ("#0b5a94", "#6db6e3"),
    # bytes
    "up": ("#0072b3", "#5cb3eb"),
    "down": ("#56b4e8", "#2d79a8"),
    "joins": ("#009e74", "#19b78c"),
    "peers": ("#e69f01", "#c98b01"),
    "conventional": ("#a9b1bb", "#69737f"),
}


def light(role: str) -> str:
    """The colour in which a role is drawn."""
    return ROLES[role][0]


def variables(dark: bool) -> str:
    """The roles as custom properties of a style sheet."""
    return " ".join(f"--{role}: {colours[dark]};" for role, colours in ROLES.items())
