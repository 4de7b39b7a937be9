"""Writes anew what the docs take from the code and the tests:

    python -m docs.renew

What is generated stands between two comments in the page; all other lines are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs import claims, diagrams

FOLDER = Path(__file__).parent
PAGES: Mapping[str, Callable[[], dict[str, str]]] = {"protocol.md": diagrams.blocks, "paper.md": claims.blocks}


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
        raise ValueError(f"nothing writes {', '.join(sorted(unknown))}")
    return page


def main() -> None:
    for name, blocks in PAGES.items():
        path = FOLDER / name
        path.write_text(renewed(path.read_text(), blocks()))


if __name__ == "__main__":
    main()
