"""The README's pictures of a run: its live page once 90 % are done, and the report at its end.

    .venv/bin/diloco run deploy/recipes/demo.toml & python -m docs.pictures runs/demo

Needs a `chromium` on the path, which is steered through its DevTools protocol.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

import diloco
from orchestrator.watch.server import HOST, WatchServer

FIGURES = Path(__file__).parent / "figures"
PAGE, REPORT = (1060, 1020), (940, 997)  # CSS pixels; 87 of the height are a window's frame
SHOWN_AT, WAIT_S, LOOK_S = 0.9, 1800.0, 0.5
SETTLE_S = 4.0  # for the page to draw what the stream brings
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


async def until(so: Callable[[], bool], what: str) -> None:
    """Wait for it. Raises TimeoutError after WAIT_S seconds."""
    give_up_at = time.monotonic() + WAIT_S
    while not so():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {WAIT_S:g} s for {what}")
        await asyncio.sleep(LOOK_S)


async def shoot(url: str, size: tuple[int, int], path: Path) -> None:
    """Write the upper part of a page, as a window of this size shows it, as PNG."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        options = (
            *OPTIONS,
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "--window-size={},{}".format(*size),
        )
        quiet = asyncio.subprocess.DEVNULL
        chromium = await asyncio.create_subprocess_exec("chromium", *options, stdout=quiet, stderr=quiet)
        stack.push_async_callback(chromium.wait)
        stack.callback(chromium.kill)
        await until((told := folder / "DevToolsActivePort").exists, "chromium")
        port = told.read_text().split()[0]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.put(f"http://{HOST}:{port}/json/new?about:blank") as answer:
            tab = await answer.json()
        socket = await stack.enter_async_context(session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0))
        numbers = itertools.count()

        async def ask(method: str, **parameters: Any) -> Any:
            await socket.send_json({"id": (number := next(numbers)), "method": method, "params": parameters})
            while (answer := await socket.receive_json(timeout=WAIT_S)).get("id") != number:
                pass
            return answer["result"]

        await ask("Page.navigate", url=url)
        await asyncio.sleep(SETTLE_S)
        taken = await ask("Page.captureScreenshot", format="png", optimizeForSpeed=False)
    path.write_bytes(base64.b64decode(taken["data"]))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


async def main(name: str) -> None:
    run = diloco.open(name)
    await until((run.store.root / "status.json").exists, "the run's start")
    await until(lambda: run.status["run"]["progress"] >= SHOWN_AT, "the run")
    async with WatchServer([run.store]).serving(0) as port:
        await shoot(f"http://{HOST}:{port}/", PAGE, FIGURES / "page.png")
    await until(lambda: run.summary is not None, "the run's end")
    await shoot(run.report().resolve().as_uri(), REPORT, FIGURES / "report.png")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
