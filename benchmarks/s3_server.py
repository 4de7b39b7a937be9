"""A server that speaks as S3 does, with one lock around every request, so that conditional creation is atomic.

    python benchmarks/s3_server.py PORT

It keeps everything in memory and answers `GET /requests` with how many requests it has served, by method, as JSON.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any

START_S = 60.0


def serve(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    inner, lock, served = DomainDispatcherApplication(create_backend_app), threading.Lock(), Counter[str]()

    def one_at_a_time(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/requests":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(served).encode()]
        with lock:
            served[environ["REQUEST_METHOD"]] += 1
            return list(inner(environ, start_response))

    run_simple("127.0.0.1", port, one_at_a_time, threaded=True)


def requests(url: str) -> dict[str, int]:
    """How many requests the server at this URL has served, by method."""
    with urllib.request.urlopen(f"{url}/requests", timeout=10.0) as answer:
        return dict(json.load(answer))


@contextmanager
def running() -> Iterator[tuple[str, dict[str, str]]]:
    """(its URL, the environment for its clients), while a server runs as a process of its own."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, str(Path(__file__).resolve()), str(port)])
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                requests(url)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the server did not start") from None
                time.sleep(0.05)
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
        yield url, keys | {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_CONFIG_FILE": "/dev/null"}
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
