"""Many people submit to several web processes and workers, which are killed, stopped and cut off.

    python tools/shared_server_soak.py                  # on loopback
    sudo python tools/shared_server_soak.py --hosts     # three hosts: network namespaces

Starts a PostgreSQL server of its own, and on each of three hosts a web process and a worker. Every
few seconds one of them is killed with SIGKILL, stopped with SIGSTOP for longer than a lease, or its
host is cut off, or the database restarts. Exits with 1 if a submission was lost, has no verdict, or
had its verdict written twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from server.postgresql_cluster import PostgresqlCluster  # noqa: E402
from server.shared_server import (  # noqa: E402
    SOLUTION,
    WRONG,
    Host,
    SharedServer,
    check_outcome,
    submit_all,
    wait_for,
)

BRIDGE, NETWORK = "shardlab0", "10.77.0"
STOP_SECONDS = 25.0  # longer than a lease
CUT_SECONDS = 25.0


class Hosts:
    """Three network namespaces on one bridge; the database is on the bridge's own address."""

    def __init__(self):
        self.names = [f"shardlab-host{n}" for n in (1, 2, 3)]

    def __enter__(self):
        self.remove()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for n, name in enumerate(self.names, start=1):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"sl{n}", "type", "veth", "peer", "name", "eth0",
                "netns", name)  # fmt: skip
            run("ip", "link", "set", f"sl{n}", "master", BRIDGE, "up")
            inside = ("ip", "-n", name)
            run(*inside, "address", "add", f"{NETWORK}.{n + 1}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)

    def host_of(self, process, database_url):
        """Return where `web2` or `worker2` runs: on the second host."""
        n = int(process[-1])
        return Host(
            name=process,
            prefix=("ip", "netns", "exec", self.names[n - 1]),
            address=f"{NETWORK}.{n + 1}",
            database_url=database_url.replace("127.0.0.1", f"{NETWORK}.1"),
        )

    def set_link(self, n, state):
        run("ip", "link", "set", f"sl{n}", state)


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Chaos:
    """Disturbs the processes, one event at a time, until it is ended."""

    def __init__(self, server, cluster, hosts, seed, seconds):
        self._server, self._cluster, self._hosts = server, cluster, hosts
        self._random, self._seconds = random.Random(seed), seconds
        self._is_ending = threading.Event()
        self.counts = Counter()
        self._thread = threading.Thread(target=self._run)
        self._start = time.monotonic()

    def start(self):
        self._thread.start()

    def stop(self):
        self._is_ending.set()
        self._thread.join()

    def _run(self):
        events = [self.kill_worker, self.kill_web, self.stop_worker, self.stop_web,
                  self.restart_database]  # fmt: skip
        if self._hosts is not None:
            events.append(self.cut_host)
        order = []
        while not self._is_ending.wait(self._seconds):
            if not order:  # each kind once, in a random order, before any comes again
                order = self._random.sample(events, len(events))
            event = order.pop()
            n = self._random.randint(1, 3)
            self.counts[event.__name__.replace("_", " ")] += 1
            print(f"{time.monotonic() - self._start:6.0f} s  {event.__name__} {n}", flush=True)
            event(n)

    def kill_worker(self, n):
        self._server.kill_worker(f"worker{n}")
        self._server.start_worker(f"worker{n}")

    def kill_web(self, n):
        self._server.kill_web(f"web{n}")
        self._server.start_web(f"web{n}")

    def stop_worker(self, n):
        self._stop(self._server.workers[f"worker{n}"])

    def stop_web(self, n):
        self._stop(self._server.webs[f"web{n}"][0])

    def _stop(self, process):
        process.send_signal(signal.SIGSTOP)
        self._is_ending.wait(STOP_SECONDS)
        process.send_signal(signal.SIGCONT)

    def restart_database(self, n):
        self._cluster.stop()
        self._cluster.start()

    def cut_host(self, n):
        self._hosts.set_link(n, "down")
        self._is_ending.wait(CUT_SECONDS)
        self._hosts.set_link(n, "up")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=500)
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two events")
    parser.add_argument("--correct", type=int, default=5, help="one in this many is a solution")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", action="store_true", help="network namespaces; needs root")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.hosts:
        return soak(options, None)
    with Hosts() as hosts:
        return soak(options, hosts)


def soak(options, hosts):
    listen = "127.0.0.1" if hosts is None else f"127.0.0.1,{NETWORK}.1"
    cluster = PostgresqlCluster(
        listen=listen, networks=() if hosts is None else (f"{NETWORK}.0/24",)
    )
    server = None
    try:
        cluster.start()
        url = cluster.new_database()
        host_of = None if hosts is None else lambda name: hosts.host_of(name, url)
        folder = tempfile.mkdtemp(prefix="shardlab-soak-")
        os.chmod(folder, 0o700)
        server = SharedServer(folder, url, options.people, hosts=host_of)
        for n in (1, 2, 3):
            server.start_web(f"web{n}")
        server.wait_until_ready()
        for n in (1, 2, 3):
            server.start_worker(f"worker{n}")
        server.wait_for_workers(3)
        return submit_and_disturb(options, server, cluster, hosts)
    finally:
        if server is not None:
            server.stop()
        cluster.close()


def submit_and_disturb(options, server, cluster, hosts):
    # The first person has a tenth of all submissions; a queue without turns would serve them first.
    many = options.submissions // 10
    counts = [many] + [
        (options.submissions - many) * n // (options.people - 1)
        - (options.submissions - many) * (n - 1) // (options.people - 1)
        for n in range(1, options.people)
    ]
    sources = {
        person: [
            f"{SOLUTION if (n + person) % options.correct == 0 else WRONG}# {person} {n}\n"
            for n in range(count)
        ]
        for person, count in enumerate(counts)
    }
    chaos = Chaos(server, cluster, hosts, options.seed, options.every)
    started = time.time()
    numbers, threads = submit_all(server, sources)
    chaos.start()
    try:
        for thread in threads:
            thread.join()
        accepted = time.time() - started
        print(f"{accepted:6.0f} s  all {len(numbers)} accepted", flush=True)
        wait_for(lambda: server.n_unfinished() == 0, 3600)
    finally:
        chaos.stop()
    return report(options, check_outcome(server, numbers, started, chaos.counts))


def report(options, outcome):
    waits = outcome.waits
    figures = {
        "accepted": outcome.n_accepted,
        "stored": outcome.n_stored,
        "lost": outcome.n_lost,
        "without a verdict": outcome.n_without_verdict,
        "verdict written twice": outcome.n_twice,
        "jobs that failed": outcome.n_failed_jobs,
        "attempts": outcome.n_attempts,
        "seconds": round(outcome.seconds),
        "median wait s": round(waits[len(waits) // 2], 1),
        "95th percentile s": round(waits[int(len(waits) * 0.95)], 1),
        "longest wait s": round(waits[-1], 1),
        "most jobs of one person before another's first": outcome.overtaken,
        "events": dict(outcome.events),
    }
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    is_right = not (outcome.n_lost or outcome.n_without_verdict or outcome.n_twice)
    return 0 if is_right and outcome.n_accepted == options.submissions else 1


if __name__ == "__main__":
    raise SystemExit(main())
