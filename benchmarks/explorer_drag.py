"""Section `explorer-drag`: what one move of a drag in the layout explorer costs.

Real Chromium on a real server, without a GPU. Two figures for one pointer move that changes the
spec, both processor time, so that other processes of the machine do not count:

- the page's main thread: event handler, layout arithmetic, building and drawing both pictures,
  style, layout and paint;
- all threads of all processes of the browser: also rasterization, and compositing in software. That
  is the time from the move to the picture if nothing runs in parallel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.report import Goal, Section
from benchmarks.web_server import running_server

_FRAME_MS = 16.0
_MOVES = 40
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_LAYOUTS = {
    "512 devices, rank 1": "mesh=x=512&array=bf16[65536]&spec=x",
    "512 devices, rank 2": "mesh=fsdp=64,tensor=8&array=bf16[8192,28672]&spec=fsdp,tensor",
    "512 devices, rank 3": "mesh=a=8,b=8,c=8&array=bf16[512,512,512]&spec=a,b,c",
}
# Drags the first axis over the slots, one slot per animation frame; resolves after the last frame.
_DRAG = """async (moves) => {
  const board = document.querySelector(".spec-board");
  const chip = board.querySelector("[data-axis]");
  const center = (item) => {
    const box = item.getBoundingClientRect();
    return { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
  };
  const slots = [...board.querySelectorAll(".slot")].map(center);
  const fire = (type, target, place) => target.dispatchEvent(new PointerEvent(type, {
    bubbles: true, pointerId: 1, button: 0, buttons: 1, isPrimary: true, ...place,
  }));
  board.setPointerCapture = () => {};  // these events come from no real pointer
  fire("pointerdown", chip, center(chip));
  for (let move = 0; move < moves; move++) {
    fire("pointermove", board, slots[move % slots.length]);
    await new Promise(requestAnimationFrame);
    await new Promise((resolve) => setTimeout(resolve));
  }
  fire("pointerup", board, slots[0]);
}"""


def measure_drags(options: Options) -> Section:
    """Drag an axis over the dimensions of three layouts of 512 devices."""
    section = Section(
        "A drag in the layout explorer",
        ["layout", "main thread, ms per move", "all of the browser, median", "min", "max"],
    )
    chromium = os.environ.get("SHARDLAB_CHROMIUM") or shutil.which("chromium")
    for name, query in _LAYOUTS.items():
        if chromium is None:
            note = "Chromium is not installed"
            section.goals.append(Goal(name, _FRAME_MS, None, unit=" ms", note=note))
            continue
        main_thread, browser = _measure_moves(chromium, query, max(5, options.rounds))
        main_median, median = statistics.median(main_thread), statistics.median(browser)
        figures = (main_median, median, min(browser), max(browser))
        section.rows.append([name, *(f"{ms:.1f}" for ms in figures)])
        section.goals.append(Goal(f"drag, main thread, {name}", _FRAME_MS, main_median, unit=" ms"))
        section.goals.append(Goal(f"drag, all threads, {name}", _FRAME_MS, median, unit=" ms"))
        data = {"layout": name, "main_thread_ms": main_thread, "all_threads_ms": browser}
        section.data.append(data)
    return section


def _measure_moves(chromium: str, query: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds per move of each round: of the main thread, and of the browser."""
    from playwright.sync_api import sync_playwright

    with running_server("/layout") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{server.url}/layout?{query}")
        page.locator(".picture canvas").first.wait_for()
        session = page.context.new_cdp_session(page)
        # Processor time of the thread, so that other processes of the machine do not count.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(_DRAG, _MOVES)  # the first drag compiles the functions
        main_thread, all_threads = [], []
        for _ in range(rounds):
            before, browser_before = _work_seconds(session), _browser_seconds()
            page.evaluate(_DRAG, _MOVES)
            main_thread.append((_work_seconds(session) - before) * 1000 / _MOVES)
            all_threads.append((_browser_seconds() - browser_before) * 1000 / _MOVES)
        browser.close()
    return main_thread, all_threads


def _browser_seconds() -> float:
    """Return the processor time of all threads of the browsers started from here (Linux)."""
    n_nanoseconds = 0
    for process in _descendants(os.getpid()):
        # A process may end meanwhile; Node.js and the server are not the browser.
        with contextlib.suppress(OSError):
            if "chrom" in (process / "exe").readlink().name:
                for thread in (process / "task").iterdir():
                    n_nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return n_nanoseconds / 1e9


def _descendants(pid: int) -> list[Path]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    processes: list[int] = []
    pending = [pid]
    while pending:
        more = children.get(pending.pop(), [])
        processes += more
        pending += more
    return [Path("/proc", str(number)) for number in processes]


def _work_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(item["value"]) for item in metrics if item["name"] == "TaskDuration")
