"""How fast objects pass a door between two regions, beside a folder on this machine's loopback.

    python benchmarks/door.py [--mbit 1000] [--rtt 80] [--loss 0.01] [--congestion cubic bbr] [--json]

Two regions of one machine, joined by a wide-area network in user space (needs root and what `benchmarks/wan/wan.py up`
names). The door is in region a. Region b creates and reads an object of 64 MB, cold and with kept connections. Then a
asks b by an object for a payload of 0.6 MB, once in two seconds, and b answers with another. What plain TCP gets over
the same link says what this machine, which has to be all of the network, could give at the time.
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
REPEATS, EXCHANGES = 4, 15
PAUSE_S = 2.0
WAIT_S = 60.0
PORT = 7443
SETTING = "net.ipv4.tcp_slow_start_after_idle=0"  # a kept connection goes on at its rate (docs/failures.md)


def moved(store: Objects, name: str) -> list[tuple[float, float]]:
    """(create, read) in Mbit/s for each repeat; the first one has no connections yet."""
    content, rates = os.urandom(LARGE), []
    for repeat in range(REPEATS):
        begun = time.perf_counter()
        store.create(f"move/{name}/{repeat}", [content])
        created = time.perf_counter()
        assert store.read(f"move/{name}/{repeat}") == content
        rates.append((LARGE * 8e-6 / (created - begun), LARGE * 8e-6 / (time.perf_counter() - created)))
        time.sleep(PAUSE_S)
    return rates


def ask(store: Door, name: str) -> list[float]:
    """Seconds from each request to its payload."""
    took = []
    for number in range(EXCHANGES):
        time.sleep(PAUSE_S)
        begun = time.perf_counter()
        store.create(f"request/{name}/{number}", [b"read"])
        store.read(f"payload/{name}/{number}", WAIT_S)
        took.append(time.perf_counter() - begun)
    return took


def answer(store: Door, name: str) -> None:
    payload = os.urandom(PAYLOAD)
    for number in range(EXCHANGES):
        store.read(f"request/{name}/{number}", WAIT_S)
        store.create(f"payload/{name}/{number}", [payload])


def inside(region: str, *words: str, detach: Path | None = None) -> list[str]:
    """The command that runs these words in a region."""
    log = ["--detach", str(detach)] if detach else []
    return [sys.executable, str(ROOT / "benchmarks/wan/wan.py"), "exec", *log, region, "--", *words]


def here(*words: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), *words]


def invited(folder: Path, region: str = "control") -> str:
    words = [sys.executable, "-m", "orchestrator", "invite", region, str(folder)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return printed.rpartition("=")[2].strip()


def between_regions(folder: Path, congestion: str, options: argparse.Namespace) -> dict[str, Any]:
    shares = [word for each in (folder, ROOT) if str(each).startswith("/tmp/") for word in ("--share", str(each))]
    shape = ["--mbit", str(options.mbit), "--rtt", str(options.rtt), "--loss", str(options.loss)]
    shape += ["--sysctl", SETTING]
    rig = [sys.executable, str(ROOT / "benchmarks/wan/wan.py")]
    subprocess.run([*rig, "up", "a", "b", *shape, "--congestion", congestion, *shares], check=True, stdout=2)
    try:
        objects = folder / congestion
        environment = {**os.environ, INVITATION: invited(objects), "PYTHONPATH": str(ROOT)}
        serve = [sys.executable, "-m", "orchestrator", "door", str(objects), "--port", str(PORT)]
        log = folder / f"{congestion}.log"
        subprocess.run(inside("a", *serve, detach=log), check=True, stdout=2, env=environment)
        while "serves" not in log.read_text():
            time.sleep(0.1)
        local, far = f"https://127.0.0.1:{PORT}", f"https://10.77.1.1:{PORT}"
        run = {"env": environment, "check": True, "text": True, "stdout": subprocess.PIPE, "timeout": 300.0}
        rates = json.loads(subprocess.run(inside("b", *here("--move", far)), **run).stdout)
        with subprocess.Popen(inside("b", *here("--answer", far)), env=environment):
            took = json.loads(subprocess.run(inside("a", *here("--ask", local)), **run).stdout)
        plain = subprocess.run([*rig, "probe", "b", "a", "--streams", str(STREAMS)], **run).stdout.splitlines()
        return {"rates": rates, "request_to_payload_s": took, "plain_tcp": plain}
    finally:
        subprocess.run([*rig, "down"], check=True, stdout=2)


def on_loopback(folder: Path) -> dict[str, Any]:
    serve = [sys.executable, "-m", "orchestrator", "door", str(folder / "behind"), "--host", "127.0.0.1", "--port", "0"]
    os.environ[INVITATION] = invited(folder / "behind")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        uri = server.stdout.readline().split()[0]
        stores: dict[str, Objects] = {"door": Door(uri), "folder": Folder(folder / "beside")}
        found = {name: moved(store, name) for name, store in stores.items()}
        server.terminate()
    return found


def show(title: str, rates: list[list[float]]) -> None:
    cold, warm = rates[0], [statistics.median(each) for each in zip(*rates[1:], strict=True)]
    print(f"{title}: create {cold[0]:.0f}, then {warm[0]:.0f} Mbit/s; read {cold[1]:.0f}, then {warm[1]:.0f} Mbit/s")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mbit", type=float, default=1000.0)
    arguments.add_argument("--rtt", type=float, default=80.0, help="milliseconds")
    arguments.add_argument("--loss", type=float, default=0.01, help="percent")
    arguments.add_argument("--congestion", nargs="+", default=["cubic", "bbr"])
    arguments.add_argument("--json", action="store_true")
    for role in ("--move", "--ask", "--answer"):  # in a region
        arguments.add_argument(role, metavar="URI", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.move or options.ask:
        print(json.dumps(moved(Door(options.move), "far") if options.move else ask(Door(options.ask), "far")))
        return
    if options.answer:
        answer(Door(options.answer), "far")
        return
    if lacks := wan.lacking():
        raise SystemExit("error: this machine lacks " + "; ".join(lacks))
    folder = Path(tempfile.mkdtemp(prefix="diloco-door-", dir="/tmp"))
    try:
        found: dict[str, Any] = {each: between_regions(folder, each, options) for each in options.congestion}
        found["loopback"] = on_loopback(folder)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(found))
        return
    for each in options.congestion:
        show(f"{each}, 64 MB", found[each]["rates"])
        took = found[each]["request_to_payload_s"]
        print(f"{each}, plain TCP over the same link: {', '.join(found[each]['plain_tcp'])}")
        print(f"{each}, request to payload of 0.6 MB: {statistics.median(took):.3f} s, at most {max(took):.3f} s")
    for name, rates in found["loopback"].items():
        show(f"loopback, {name}", rates)


if __name__ == "__main__":
    main()
