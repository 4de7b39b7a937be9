#!/usr/bin/env python3
"""Several regions on one machine: namespaces joined by a wide-area network in user space (router.c). Needs root and cc.

    wan.py up a b c --mbit 50 --rtt 60 --loss 0.1      # percent; a region is a, with the address 10.77.1.1
    wan.py exec a -- ray start --head ...              # in the region: its own network, PIDs, host name, /tmp, /dev/shm
    wan.py exec --detach /tmp/b.log b -- ray start ... # in the background; prints the PID here
    wan.py link a b --mbit 5 --rtt 200                 # both directions; --one-way: from a to b only
    wan.py link a b --down;  wan.py link a b --up      # packets vanish, as on a broken route
    wan.py isolate b;  wan.py join b                   # all its links
    wan.py probe a b [--streams 4]                     # round trip and throughput of plain TCP
    wan.py counters [--ports]                          # bytes over each link, and by server port
    wan.py watch --csv links.csv                       # megabits per second over each link, every second
    wan.py power b --off;  wan.py power b --on         # every process of the region is killed at once
    wan.py down

Processes see what they see on hosts of their own: nothing is shared but the file system outside /tmp, and what
`--share DIR` names. --mtu 9000 and fewer, larger packets make high rates cheap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("WAN_HOME", "/tmp/wan"))  # state, router and the regions' own /tmp
STATE, SOCKET = HOME / "state.json", HOME / "router.sock"
QUEUE_MS = 100.0  # of a link's buffer
ENTER = ["--net", "--mount", "--uts", "--ipc", "--pid"]


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"wan.py: {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def lacking() -> list[str]:
    """What this machine cannot do, in words."""
    found = []
    if os.geteuid() != 0:
        found.append("root: namespaces and TUN devices need it")
    if not Path("/dev/net/tun").exists():
        found.append("/dev/net/tun: load the kernel module tun, or give the container that device")
    found += [f"{tool}: not in PATH" for tool in ("ip", "unshare", "nsenter", "cc") if not shutil.which(tool)]
    if not found:
        probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            found.append(f"network namespaces: {probe.stderr.strip()}")
    return found


def state() -> dict[str, Any]:
    if not STATE.exists():
        sys.exit("wan.py: no network is up")
    found: dict[str, Any] = json.loads(STATE.read_text())
    return found


def ask(command: str) -> str:
    """The router's answer to a command."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(SOCKET))
        connection.sendall(command.encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    answer = b"".join(parts).decode()
    if answer.startswith("error"):
        sys.exit(f"wan.py: router: {answer}")
    return answer


def number(region: str) -> int:
    regions = state()["regions"]
    if region not in regions:
        sys.exit(f"wan.py: {region} is no region; there are {', '.join(regions)}")
    return list(regions).index(region) + 1


# ---------------------------------------------------------------- regions


def power_on(region: str, shares: list[str]) -> int:
    """Start the first process of a region; returns its PID here."""
    private = HOME / region
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o1777)
    shutil.copy(HOME / "router", private / ".router")
    binds = ""
    for each in shares:
        inside = private / Path(each).relative_to("/tmp")
        inside.mkdir(parents=True, exist_ok=True)
        binds += f"mount --bind {each} {inside}; "
    mounts = f"{binds} mount --bind {HOME}/hosts /etc/hosts; "  # JAX's collectives look up their own host's name
    mounts += f"mount --rbind {private} /tmp; mount -t tmpfs tmpfs /dev/shm"
    script = f"hostname {region}; {mounts}; exec /tmp/.router init"
    words = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
    outer = subprocess.Popen(
        ["ip", "netns", "exec", f"wan-{region}", *words, "sh", "-c", script],
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=(HOME / f"{region}.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    for _ in range(100):
        time.sleep(0.05)
        if outer.poll() is not None:
            sys.exit(f"wan.py: region {region} did not start: {(HOME / f'{region}.log').read_text()}")
        pids = children.read_text().split()
        if pids and Path(f"/proc/{pids[0]}/comm").read_text().strip() == ".router":
            return int(pids[0])
    sys.exit(f"wan.py: region {region} did not start within 5 s")


def up(options: argparse.Namespace) -> None:
    if wants := lacking():
        sys.exit("wan.py: this machine lacks\n  " + "\n  ".join(wants))
    if STATE.exists():
        sys.exit("wan.py: a network is up; `wan.py down` first")
    HOME.mkdir(parents=True, exist_ok=True)
    run("cc", "-O2", "-o", str(HOME / "router"), str(HERE / "router.c"))
    addresses = {region: f"10.77.{index}.1" for index, region in enumerate(options.regions, 1)}
    hosts = "".join(f"{address} {region}\n" for region, address in addresses.items())
    (HOME / "hosts").write_text("127.0.0.1 localhost\n" + hosts)
    found: dict[str, Any] = {"router": 0, "share": options.share, "regions": {}}
    found["regions"] = {region: {"address": address, "pid": 0} for region, address in addresses.items()}
    STATE.write_text(json.dumps(found))  # first, so that `down` cleans up whatever follows
    try:
        _start(found, options)
    except BaseException:
        down(argparse.Namespace(keep=True))
        raise
    for region, each in found["regions"].items():
        print(f"{region}: {each['address']}, process {each['pid']}")


def _start(found: dict[str, Any], options: argparse.Namespace) -> None:
    names = {region: f"wan-{region}" for region in options.regions}
    for name in names.values():
        run("ip", "netns", "add", name)
    SOCKET.unlink(missing_ok=True)
    words = [str(HOME / "router"), str(SOCKET), *names.values()]
    router = subprocess.Popen(words, start_new_session=True, stderr=(HOME / "router.log").open("w"))
    found["router"] = router.pid
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, router.pid, -10)  # delays should be the link's, not the scheduler's
    for _ in range(100):
        time.sleep(0.05)
        if SOCKET.exists():
            break
        if router.poll() is not None:
            sys.exit((HOME / "router.log").read_text())
    for region, name in names.items():
        address = found["regions"][region]["address"]
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "wan0")
        run("ip", "-n", name, "link", "set", "wan0", "mtu", str(options.mtu), "txqueuelen", "10000", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        for setting in options.sysctl:
            run("ip", "netns", "exec", name, "sysctl", "-qw", setting)
        found["regions"][region]["pid"] = power_on(region, options.share)
        STATE.write_text(json.dumps(found))
    for one in options.regions:
        for other in options.regions:
            if one != other:
                set_link(one, other, options)


def set_link(source: str, target: str, options: argparse.Namespace) -> None:
    words = []
    if options.mbit is not None:
        words.append(f"bps={options.mbit * 1e6:.0f}")
    if options.rtt is not None:
        words.append(f"delay_us={options.rtt * 500:.0f}")
    if options.jitter is not None:
        words.append(f"jitter_us={options.jitter * 1000:.0f}")
    if options.loss is not None:
        words.append(f"loss_ppm={options.loss * 1e4:.0f}")
    if options.queue is not None:
        words.append(f"queue_us={options.queue * 1000:.0f}")
    if getattr(options, "up", False) is True:
        words.append("up=1")
    if getattr(options, "down", False) is True:
        words.append("up=0")
    ask(f"set {number(source)} {number(target)} {' '.join(words)}")


def link(options: argparse.Namespace) -> None:
    set_link(options.source, options.target, options)
    if not options.one_way:
        set_link(options.target, options.source, options)


def isolate(options: argparse.Namespace) -> None:
    here = number(options.region)
    for other in range(1, len(state()["regions"]) + 1):
        if other != here:
            ask(f"set {here} {other} up={int(options.joined)}")
            ask(f"set {other} {here} up={int(options.joined)}")


def execute(options: argparse.Namespace) -> None:
    words = [word for word in options.command if word != "--"] if options.command[:1] == ["--"] else options.command
    pid = state()["regions"][options.region]["pid"]
    command = ["nsenter", "--target", str(pid), *ENTER, "--", *words]
    if options.detach is None:
        os.execvp(command[0], command)
    log = Path(options.detach).open("ab")  # noqa: SIM115
    child = subprocess.Popen(
        command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )
    print(child.pid)


def power(options: argparse.Namespace) -> None:
    found = state()
    region = found["regions"][options.region]
    if options.off:
        os.kill(region["pid"], signal.SIGKILL)
    else:
        region["pid"] = power_on(options.region, found["share"])
        STATE.write_text(json.dumps(found))


PROBE = """
import socket, sys, threading, time
role, address, seconds, streams, congestion = *sys.argv[1:3], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
if role == "sink":
    server = socket.create_server((address, 5201))
    def drain(one):
        while one.recv(1 << 20): pass
    for _ in range(streams + 1):
        threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
    time.sleep(seconds + 3)
else:
    began = time.monotonic()
    socket.create_connection((address, 5201))
    rtt, sent = time.monotonic() - began, [0] * streams
    def push(index):
        one = socket.socket()
        if congestion: one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        one.connect((address, 5201)); one.settimeout(seconds)
        end = time.monotonic() + seconds
        while time.monotonic() < end: sent[index] += one.send(bytes(65536))
    pushing = [threading.Thread(target=push, args=(i,)) for i in range(streams)]
    [each.start() for each in pushing]; [each.join() for each in pushing]
    print(f"connect {rtt * 1e3:.1f} ms, {sum(sent) * 8e-6 / seconds:.1f} Mbit/s given to {streams} TCP streams")
"""


def probe(options: argparse.Namespace) -> None:
    """Round trip and throughput of plain TCP between two regions."""
    regions = state()["regions"]
    words = [regions[options.target]["address"], str(options.seconds), str(options.streams), options.congestion]

    def start(region: str, role: str) -> subprocess.Popen[bytes]:
        enter = ["nsenter", "--target", str(regions[region]["pid"]), *ENTER, "--", sys.executable, "-c", PROBE]
        return subprocess.Popen([*enter, role, *words])

    sink = start(options.target, "sink")
    time.sleep(0.5)
    source, target = options.source, options.target
    before, at = counters()[0][source, target]["bytes"], time.monotonic()
    start(source, "source").wait()
    took = time.monotonic() - at
    print(f"{(counters()[0][source, target]['bytes'] - before) * 8e-6 / took:.1f} Mbit/s over the link")
    sink.wait()


def down(options: argparse.Namespace) -> None:
    found = state()
    for pid in [*(region["pid"] for region in found["regions"].values()), found["router"]]:
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)  # of a region: its first process, and so all of them
    time.sleep(0.3)
    for region in found["regions"]:
        if Path(f"/run/netns/wan-{region}").exists():
            run("ip", "netns", "delete", f"wan-{region}")
        if not options.keep:
            shutil.rmtree(HOME / region, ignore_errors=True)
    STATE.unlink()


# ---------------------------------------------------------------- counters

Counters = dict[tuple[str, str], dict[str, int]]


def counters() -> tuple[Counters, dict[tuple[str, str, int], tuple[int, int, int]]]:
    """By link: packets, bytes, lost, overflowed, cut. By link and server port: packets, bytes, connections opened."""
    names = list(state()["regions"])
    links: Counters = {}
    ports = {}
    for line in ask("stats").splitlines():
        kind, source, target, *rest = line.split()
        pair = names[int(source) - 1], names[int(target) - 1]
        numbers = [int(each) for each in rest]
        if kind == "link":
            links[pair] = dict(zip(("packets", "bytes", "lost", "overflowed", "cut"), numbers, strict=True))
        else:
            ports[*pair, numbers[0]] = (numbers[1], numbers[2], numbers[3])
    return links, ports


def show(options: argparse.Namespace) -> None:
    links, ports = counters()
    for (source, target), each in links.items():
        print(f"{source} -> {target}: " + ", ".join(f"{value} {key}" for key, value in each.items()))
        if options.ports:
            rows = [(port, row) for (*pair, port), row in ports.items() if tuple(pair) == (source, target)]
            for port, (packets, size, opened) in sorted(rows, key=lambda row: -row[1][1]):
                print(f"    port {port}: {size} bytes, {packets} packets, {opened} connections opened")


def watch(options: argparse.Namespace) -> None:
    before, at = counters()[0], time.time()
    with Path(options.csv).open("w") as file:
        file.write("unix_s," + ",".join(f"{a}->{b} mbit/s" for a, b in before) + "\n")
        end = at + options.seconds if options.seconds else float("inf")
        while time.time() < end and STATE.exists():
            time.sleep(options.every)
            after, now = counters()[0], time.time()
            rates = [(after[pair]["bytes"] - before[pair]["bytes"]) * 8e-6 / (now - at) for pair in before]
            file.write(f"{now:.2f}," + ",".join(f"{rate:.3f}" for rate in rates) + "\n")
            file.flush()
            before, at = after, now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def add(name: str, do: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(name)
        command.set_defaults(do=do)
        return command

    def shape(command: argparse.ArgumentParser, *defaults: float | None) -> None:
        mbit, rtt, loss, queue = defaults
        command.add_argument("--mbit", type=float, default=mbit, help="per second and direction; 0: without limit")
        command.add_argument("--rtt", type=float, default=rtt, help="milliseconds, half of it each way")
        command.add_argument("--jitter", type=float, help="milliseconds at most, added each way, in order")
        command.add_argument("--loss", type=float, default=loss, help="percent of the packets each way")
        command.add_argument("--queue", type=float, default=queue, help="milliseconds of buffer before the link")

    one = add("up", up)
    one.add_argument("regions", nargs="+")
    shape(one, 50.0, 60.0, 0.0, QUEUE_MS)
    one.add_argument("--mtu", type=int, default=1500)
    one.add_argument("--sysctl", action="append", default=[], metavar="KEY=VALUE", help="of every region; repeatable")
    one.add_argument("--share", action="append", default=[], metavar="DIR", help="below /tmp, the same in all regions")
    one = add("exec", execute)
    one.add_argument("region")
    one.add_argument("--detach", metavar="LOG")
    one.add_argument("command", nargs=argparse.REMAINDER)
    one = add("link", link)
    one.add_argument("source")
    one.add_argument("target")
    shape(one, None, None, None, None)
    one.add_argument("--one-way", action="store_true")
    one.add_argument("--down", action="store_true")
    one.add_argument("--up", action="store_true")
    for name, joined in (("isolate", False), ("join", True)):
        one = add(name, isolate)
        one.set_defaults(joined=joined)
        one.add_argument("region")
    one = add("power", power)
    one.add_argument("region")
    one.add_argument("--off", action="store_true")
    one.add_argument("--on", action="store_true")
    one = add("probe", probe)
    one.add_argument("source")
    one.add_argument("target")
    one.add_argument("--seconds", type=float, default=5.0)
    one.add_argument("--streams", type=int, default=1)
    one.add_argument("--congestion", default="")
    add("counters", show).add_argument("--ports", action="store_true")
    one = add("watch", watch)
    one.add_argument("--csv", required=True)
    one.add_argument("--every", type=float, default=1.0)
    one.add_argument("--seconds", type=float, default=0.0)
    add("down", down).add_argument("--keep", action="store_true", help="the regions' own /tmp, below " + str(HOME))

    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
