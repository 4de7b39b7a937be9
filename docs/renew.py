"""Rewrites the parts of the docs that are generated from the code and the tests:

    python -m docs.renew

Each part is between two comments in its page. The rest of the page does not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs import claims, commands, diagrams, recipe

FOLDER = Path(__file__).parent
PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "protocol.md": diagrams.blocks,
    "paper.md": claims.blocks,
    "commands.md": commands.blocks,
    "recipe.md": recipe.blocks,
}


def renewed(page: str, blocks: Mapping[str, str]) -> str:
    """The page with each block in its place. Raises ValueError for a block with no place, or a place with no block."""
    for name, text in blocks.items():
        begin, end = f"<!-- {name}: written by python -m docs.renew -->", f"<!-- end of {name} -->"
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(place.findall(page)) != 1:
            raise ValueError(f"the page must have the lines {begin!r} and {end!r} once each")
        page = place.sub(lambda _, text=f"{begin}\n\n{text}\n\n{end}": text, page)  # type: ignore[misc]
    unknown = set(re.findall(r"<!-- (.+): written by python -m docs\.renew -->", page)) - blocks.keys()
    if unknown:
        raise ValueError(f"no generator writes {', '.join(sorted(unknown))}")
    return page


def main() -> None:
    """Rewrite every page in PAGES."""
    for name, blocks in PAGES.items():
        path = FOLDER / name
        path.write_text(renewed(path.read_text(), blocks()))


if __name__ == "__main__":
    main()
