"""Section `explorer-drag`: what one move of a drag in the layout explorer costs the page's thread.

Real Chromium on a real server. The figure is the processor time of all tasks of the page's main
thread for one pointer move that changes the spec: event handler, layout arithmetic, building and
drawing both pictures, style, layout and paint. Rasterization and compositing are in other threads,
or on a GPU.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.options import Options
from benchmarks.report import Goal, Section

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
        "A drag in the layout explorer", ["layout", "ms per move, median", "min", "max"]
    )
    chromium = os.environ.get("SHARDLAB_CHROMIUM") or shutil.which("chromium")
    for name, query in _LAYOUTS.items():
        if chromium is None:
            note = "Chromium is not installed"
            section.goals.append(Goal(name, _FRAME_MS, None, unit=" ms", note=note))
            continue
        times = _measure_moves(chromium, query, max(5, options.rounds))
        median = statistics.median(times)
        section.rows.append([name, *(f"{ms:.1f}" for ms in (median, min(times), max(times)))])
        section.goals.append(Goal(f"drag, {name}", _FRAME_MS, median, unit=" ms"))
        section.data.append({"layout": name, "ms_per_move": times})
    return section


def _measure_moves(chromium: str, query: str, rounds: int) -> list[float]:
    from playwright.sync_api import sync_playwright

    with _server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{url}/layout?{query}")
        page.locator(".picture canvas").first.wait_for()
        session = page.context.new_cdp_session(page)
        # Processor time of the thread, so that other processes of the machine do not count.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(_DRAG, _MOVES)  # the first drag compiles the functions
        times = []
        for _ in range(rounds):
            before = _work_seconds(session)
            page.evaluate(_DRAG, _MOVES)
            times.append((_work_seconds(session) - before) * 1000 / _MOVES)
        browser.close()
    return times


def _work_seconds(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(item["value"]) for item in metrics if item["name"] == "TaskDuration")


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", "0"]
    with tempfile.TemporaryDirectory() as data:
        environment = {**os.environ, "SHARDLAB_DATA": data, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                yield "http://" + line.split("http://")[1].split("/")[0]
            finally:
                process.terminate()
                process.wait(60)
