"""Section `web-reading`: start of the server, 200 people reading pages, and the weight of pages.

The peer of a page is a static response of the same size from the same web server, requested by the
same clients in the same way, alternately.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from benchmarks.options import Options
from benchmarks.page_weight import page_weight
from benchmarks.report import Goal, Section
from benchmarks.web_server import memory_mb, processor_seconds, running_server

N_PEOPLE = 200
_PAUSE_S = 1.0  # each person requests a page about once a second
PAGES = ("/", "/practice", "/practice/shard-map-psum", "/layout", "/plan", "/lab")

# A response of fixed bytes, without templates, guard or database.
_STATIC_SERVER = """
import sys, uvicorn
from starlette.responses import Response
body = b"x" * int(sys.argv[2])
async def app(scope, receive, send):
    if scope["type"] == "http":
        await Response(body, media_type="text/html")(scope, receive, send)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
"""


def measure_reading(options: Options) -> Section:
    """Measure start-up, then pages and a static response alternately."""
    section = Section(
        f"Pages: {N_PEOPLE} people, each a page about every second",
        ["page", "bytes", "CPU, ms", "p50, ms", "p95, ms", "p95 of a static response", "ratio"],
    )
    duration_s = 4.0 if options.rounds < 9 else 8.0
    starts, start_cpu = [], []
    for _ in range(options.processes):
        with running_server() as server:
            starts.append(server.first_page_s)
            start_cpu.append(processor_seconds(server.pid))
    weights: dict[str, int] = {}
    with running_server() as server:
        pages = [page for page in PAGES if _fetch(server.url + page)]
        before_mb = memory_mb(server.pid)
        ratios = []
        for page in pages:
            n_bytes = len(_fetch(server.url + page))
            weights[page] = page_weight(server.url + page, _fetch)
            cpu_start_s = processor_seconds(server.pid)
            ours = _read_pages(server.url + page, duration_s)
            cpu_ms = (processor_seconds(server.pid) - cpu_start_s) / len(ours) * 1e3
            with _static_server(n_bytes) as url:
                bare = _read_pages(url, duration_s)
            ratio = _percentile(ours, 95) / _percentile(bare, 95)
            ratios.append(ratio)
            times = [_percentile(ours, 50), _percentile(ours, 95), _percentile(bare, 95)]
            cells = [f"{seconds * 1e3:.1f}" for seconds in times]
            section.rows.append([page, str(n_bytes), f"{cpu_ms:.1f}", *cells, f"{ratio:.1f}x"])
            section.data.append({"page": page, "seconds": times, "cpu_ms": cpu_ms, "n": len(ours)})
            section.goals.append(Goal(f"processor time of {page}", 2.0, cpu_ms, unit=" ms"))
        growth_mb = memory_mb(server.pid) - before_mb
    heaviest = max(weights, key=lambda page: weights[page])
    section.notes = [
        f"start of the server to the home page: {statistics.median(starts):.2f} s, of which "
        f"{statistics.median(start_cpu):.2f} s of a processor in the web process",
        f"memory of the web process after all of it: {growth_mb:+.0f} MB",
        *(f"weight of {page}: {n / 1e3:.0f} kB compressed" for page, n in weights.items()),
    ]
    section.goals += [
        Goal("start of the server to a usable page", 3.0, statistics.median(starts), unit=" s"),
        Goal(f"weight of {heaviest}, compressed", 300.0, weights[heaviest] / 1e3, unit=" kB"),
    ]
    return section


def _fetch(url: str) -> bytes:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as response:
        return bytes(response.read())
    return b""


@contextlib.contextmanager
def _static_server(n_bytes: int) -> Iterator[str]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", _STATIC_SERVER, str(port), str(n_bytes)]
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}/"
        while not _fetch(url):
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _read_pages(url: str, duration_s: float) -> list[float]:
    """Return the seconds of each request of `N_PEOPLE` people, each on a connection of its own."""
    return asyncio.run(_read_pages_together(url, duration_s))


async def _read_pages_together(url: str, duration_s: float) -> list[float]:
    end = time.perf_counter() + duration_s
    people = (_read_as_one_person(url, end, random.Random(n)) for n in range(N_PEOPLE))
    return [seconds for times in await asyncio.gather(*people) for seconds in times]


async def _read_as_one_person(url: str, end: float, draws: random.Random) -> list[float]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    times = []
    await asyncio.sleep(draws.random() * _PAUSE_S)
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert head.startswith(b"HTTP/1.1 200"), head[:200]
        assert length is not None
        await reader.readexactly(int(length[1]))
        times.append(time.perf_counter() - start)
        await asyncio.sleep(_PAUSE_S * (0.5 + draws.random()))
    writer.close()
    return times


def _percentile(times: list[float], percent: int) -> float:
    return statistics.quantiles(times, n=100)[percent - 1]
