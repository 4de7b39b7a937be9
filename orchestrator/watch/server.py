"""The live page's server: one static page, and one stream of server-sent events that feeds it.

It listens on loopback alone, and answers only requests to loopback's own names, so that no foreign page reaches it
under a name of its own. Nothing changes by GET. A page steers a run by POST, from its own origin, with a cookie that it
got once for the token in the printed address.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any, get_args

from aiohttp import web

from orchestrator.lifecycle import requests
from orchestrator.recipe.config import SYNCER, FaultKind
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.report.palette import variables
from orchestrator.store.run_store import RunStore
from orchestrator.watch.feed import Feed
from orchestrator.watch.watched_run import Telling, WatchedRun
from outer.background import Background, tell

HOST = "127.0.0.1"
NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")  # a tunnel may have another port
POLL_S = 0.5  # between two looks at a run
GATHER_S, PAUSE_S = 0.05, 0.4  # before an event, for what comes with its first news, and after it
ALIVE_S = 15.0  # between two signs of life
WRITE_S = 20.0  # for a page to take an event
CLIENTS_MAX = 32
BODY_MAX = 4096  # bytes of a request
ACT_S = 60.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PAGE, FIGURES = files("orchestrator.watch") / "page", files("orchestrator.report") / "templates"
ASKED = "asked for on the live page"

Strike = Callable[[RunStore, str, str], str]  # store, kind, target: inject a fault, and say what happened


class WatchServer:
    """Serves pages of these runs, which are read while a page is open, and not otherwise.

    `strike`: what injects a fault, as chaos's command does. With it a page with the token may steer the runs.
    """

    def __init__(
        self,
        stores: Sequence[RunStore],
        strike: Strike | None = None,
        failed: Callable[[BaseException], object] = tell,
    ) -> None:
        self._stores, self._strike = stores, strike
        self.token = secrets.token_urlsafe(24) if strike else ""  # until it is used
        self._session = secrets.token_urlsafe(24)
        self._cookie = f"diloco-watch-{secrets.token_hex(4)}"  # cookies know no ports
        self._feed, self._background = Feed(), Background(failed)
        self._threads = ThreadPoolExecutor(2 * len(stores) + 2, "watch")
        self._clients = 0
        self._watched = asyncio.Event()
        self._acting = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[int]:
        """Serve within the block; gives the port, which may be chosen by 0. Raises OSError."""
        app = web.Application(middlewares=[self._guarded], client_max_size=BODY_MAX)
        app.add_routes([web.get(path, self._file, allow_head=False) for path in FILES])
        app.add_routes([web.get("/events", self._events, allow_head=False), web.post("/act", self._act)])
        app.add_routes([web.get("/session", self._known, allow_head=False), web.post("/session", self._begin)])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port)
            await site.start()
            for number, store in enumerate(self._stores):
                run = WatchedRun(store, self._telling(number))
                self._feed.state(number, "run", {"name": name_of(store), "folder": str(store)})
                self._background.spawn(self._again(run.look))
                self._background.spawn(self._again(run.read_on))
            yield runner.addresses[0][1]
        finally:
            for task in self._background.running:
                task.cancel()
            await runner.cleanup()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _telling(self, run: int) -> Telling:
        soon = asyncio.get_running_loop().call_soon_threadsafe

        def state(topic: str, value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                soon(self._feed.state, run, topic, value)

        def lines(values: Sequence[Any]) -> None:
            with contextlib.suppress(RuntimeError):
                soon(self._feed.lines, run, values)

        return Telling(state, lines)

    async def _again(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._watched.wait()
            await loop.run_in_executor(self._threads, work)
            await asyncio.sleep(POLL_S)

    # -------------------------------------------------------------- requests

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            self._check(request)
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            response = web.json_response({"error": error.text or error.reason}, status=error.status)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _check(self, request: web.Request) -> None:
        """Raises HTTPForbidden for a request that a foreign page may have made."""
        if not NAMES.fullmatch(request.headers.get("Host", "")):
            raise web.HTTPForbidden(text="this page is served to loopback's own names alone")
        if request.method != "GET":
            if request.headers.get("Origin") != f"http://{request.headers['Host']}":
                raise web.HTTPForbidden(text="this request comes from another page")
            if request.content_type != "application/json":
                raise web.HTTPUnsupportedMediaType(text="a request is JSON")

    async def _file(self, request: web.Request) -> web.Response:
        kind, text = FILES[request.path]
        return web.Response(text=text(), content_type=kind)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._clients >= CLIENTS_MAX:
            raise web.HTTPServiceUnavailable(text=f"{CLIENTS_MAX} pages are open already")
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        known = self._feed.known(request.headers.get("Last-Event-ID", ""))
        self._clients += 1
        self._watched.set()
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            while True:
                data = b": still here\n\n"
                if await self._feed.later(known, ALIVE_S):
                    await asyncio.sleep(GATHER_S)
                    known, data = self._feed.after(known)
                async with asyncio.timeout(WRITE_S):
                    await response.write(data)
                await asyncio.sleep(PAUSE_S)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._clients -= 1
            if not self._clients:
                self._watched.clear()
        return response

    # -------------------------------------------------------------- control

    def _may_steer(self, request: web.Request) -> bool:
        return self._strike is not None and secrets.compare_digest(
            request.cookies.get(self._cookie, "").encode(), self._session.encode()
        )

    async def _known(self, request: web.Request) -> web.Response:
        """Whether this page may steer the runs, and what faults there are."""
        told = {"control": self._may_steer(request), "kinds": get_args(FaultKind), "syncer": SYNCER}
        return web.json_response(told)

    async def _begin(self, request: web.Request) -> web.Response:
        """Give a cookie for the token, which is of no use afterwards."""
        token = str((await _asked(request)).get("token"))
        if not self.token or not secrets.compare_digest(token.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="this token is not, or no longer, good: start diloco watch --control again")
        self.token = ""
        response = web.json_response({"control": True})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response

    async def _act(self, request: web.Request) -> web.Response:
        """Do what a button says; one thing at a time."""
        if not self._may_steer(request):
            raise web.HTTPForbidden(text="this page may not steer the run: open the address that was printed")
        asked = await _asked(request)
        try:
            async with self._acting, asyncio.timeout(ACT_S):
                work = asyncio.get_running_loop().run_in_executor(self._threads, self._do, asked)
                return web.json_response({"told": await work})
        except (InputError, OSError) as error:  # a cluster that does not answer and a time-out, too
            raise web.HTTPConflict(text=str(error) or "it takes too long; see the log") from error

    def _do(self, asked: Mapping[str, Any]) -> str:
        """Carry a request out, and say what happened. Raises InputError for what there is not."""
        store = dict(enumerate(self._stores)).get(asked.get("run", -1))
        if store is not None and self._strike is not None:
            match asked:
                case {"act": "stop"}:
                    ended = requests.stop(store, ASKED)
                    return f"nothing to stop: the run has {ended}" if ended else "asked the run to stop"
                case {"act": "checkpoint"}:
                    requests.checkpoint(store)
                    return "asked for a checkpoint"
                case {"act": "scale", "pool": str(pool), "learners": int(learners)}:
                    return f"pool {pool}: {requests.scale(store, pool, learners)} -> {learners} learners"
                case {"act": "fault", "kind": str(kind), "target": str(target)}:
                    return self._strike(store, kind, target)
        raise InputError([Problem("act", asked.get("act"), "is nothing that a page can ask for", "reload the page")])


def name_of(store: RunStore) -> str:
    """What a page calls a run: the last part of its folder's path, or of its store's URI."""
    return str(store).rstrip("/").rpartition("/")[2]


async def _asked(request: web.Request) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        if isinstance(asked := await request.json(), dict):
            return asked
    raise web.HTTPBadRequest(text="a request is a JSON object")


def _text(name: str) -> str:
    return ((FIGURES if name.startswith("figures.") else PAGE) / name).read_text(encoding="utf-8")


def _style() -> str:
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}"
    return f":root {{ {variables(dark=False)} }}\n{dark}\n{_text('figures.css')}{_text('page.css')}"


FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "/": ("text/html", partial(_text, "page.html")),
    "/page.css": ("text/css", _style),
    "/figures.js": ("text/javascript", partial(_text, "figures.js")),
    "/page.js": ("text/javascript", partial(_text, "page.js")),
}
