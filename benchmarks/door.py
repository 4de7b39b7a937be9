"""How fast objects pass a door between two regions, beside a folder on this machine's loopback.

    python benchmarks/door.py [--mbit 1000] [--rtt 80] [--loss 0.01] [--json]

Two regions of one machine, joined by a wide-area network in user space (needs root and what `benchmarks/wan/wan.py up`
names). The door is in region a. Region b creates and reads an object of 64 MB, cold and with kept connections, and then
payloads of 0.6 MB now and then. What plain TCP gets over the same link says what this machine, which has to be all of
the network, could give at the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.wan import wan  # noqa: E402
from outer.journal.door import INVITATION, STREAMS, Door  # noqa: E402
from outer.journal.object_store import Folder, Objects  # noqa: E402

LARGE, PAYLOAD = 64_000_000, 600_000  # bytes
LARGE_REPEATS, PAYLOADS = 4, 15
PAUSE_S = 2.0
PORT = 7443


def moved(store: Objects, size: int, repeats: int) -> list[tuple[float, float]]:
    """(create, read) in seconds for each repeat; the first one has no connections yet."""
    content, took = os.urandom(size), []
    about = (0.0, size) if isinstance(store, Door) and size == PAYLOAD else ()  # mail says it of a payload
    for repeat in range(repeats):
        begun = time.perf_counter()
        store.create(f"move/{size}/{repeat}", [content])
        created = time.perf_counter()
        assert store.read(f"move/{size}/{repeat}", *about) == content
        took.append((created - begun, time.perf_counter() - created))
        time.sleep(PAUSE_S)
    return took


def both(store: Objects) -> dict[str, list[tuple[float, float]]]:
    return {"64 MB": moved(store, LARGE, LARGE_REPEATS), "0.6 MB": moved(store, PAYLOAD, PAYLOADS)}


def inside(region: str, *words: str, detach: Path | None = None) -> list[str]:
    """The command that runs these words in a region."""
    log = ["--detach", str(detach)] if detach else []
    return [sys.executable, str(ROOT / "benchmarks/wan/wan.py"), "exec", *log, region, "--", *words]


def invited(folder: Path, region: str = "control") -> str:
    words = [sys.executable, "-m", "orchestrator", "invite", region, str(folder)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return printed.rpartition("=")[2].strip()


def between_regions(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    shares = [word for each in (folder, ROOT) if str(each).startswith("/tmp/") for word in ("--share", str(each))]
    shape = ["--mbit", str(options.mbit), "--rtt", str(options.rtt), "--loss", str(options.loss)]
    rig = [sys.executable, str(ROOT / "benchmarks/wan/wan.py")]
    subprocess.run([*rig, "up", "a", "b", *shape, *shares], check=True, stdout=2)
    try:
        objects = folder / "between"
        environment = {**os.environ, INVITATION: invited(objects), "PYTHONPATH": str(ROOT)}
        serve = [sys.executable, "-m", "orchestrator", "door", str(objects), "--port", str(PORT)]
        log = folder / "door.log"
        subprocess.run(inside("a", *serve, detach=log), check=True, stdout=2, env=environment)
        while "serves" not in log.read_text():
            time.sleep(0.1)
        run = {"env": environment, "check": True, "text": True, "stdout": subprocess.PIPE, "timeout": 300.0}
        move = [sys.executable, str(Path(__file__).resolve()), "--move", f"https://10.77.1.1:{PORT}"]
        took = json.loads(subprocess.run(inside("b", *move), **run).stdout)
        plain = subprocess.run(
            [*rig, "probe", "b", "a", "--streams", str(STREAMS), "--congestion", "bbr"], **run
        ).stdout.splitlines()
        return {"took_s": took, "plain_tcp": plain}
    finally:
        subprocess.run([*rig, "down"], check=True, stdout=2)


def on_loopback(folder: Path) -> dict[str, Any]:
    serve = [sys.executable, "-m", "orchestrator", "door", str(folder / "behind"), "--host", "127.0.0.1", "--port", "0"]
    os.environ[INVITATION] = invited(folder / "behind")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        uri = server.stdout.readline().split()[0]
        stores: dict[str, Objects] = {"door": Door(uri), "folder": Folder(folder / "beside")}
        found = {name: both(store) for name, store in stores.items()}
        server.terminate()
    return found


def show(where: str, took: dict[str, list[list[float]]]) -> None:
    for kind, rows in took.items():
        warm = [statistics.median(each) for each in zip(*rows[1:], strict=True)]
        created, read = (f"{cold:.3f}, then {usual:.3f} s" for cold, usual in zip(rows[0], warm, strict=True))
        print(f"{where}, {kind}: create {created}; read {read}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mbit", type=float, default=1000.0)
    arguments.add_argument("--rtt", type=float, default=80.0, help="milliseconds")
    arguments.add_argument("--loss", type=float, default=0.01, help="percent")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--move", metavar="URI", help=argparse.SUPPRESS)  # in a region
    options = arguments.parse_args()
    if options.move:
        print(json.dumps(both(Door(options.move))))
        return
    if lacks := wan.lacking():
        raise SystemExit("error: this machine lacks " + "; ".join(lacks))
    folder = Path(tempfile.mkdtemp(prefix="diloco-door-", dir="/tmp"))
    try:
        found = {"between": between_regions(folder, options), "loopback": on_loopback(folder)}
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(found))
        return
    show("between regions", found["between"]["took_s"])
    print(f"plain TCP over the same link: {', '.join(found['between']['plain_tcp'])}")
    for name, took in found["loopback"].items():
        show(f"loopback, {name}", took)


if __name__ == "__main__":
    main()
