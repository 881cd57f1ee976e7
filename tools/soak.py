"""Judges many submissions in a row, a third of them hostile, and reports what is left behind.

    python tools/soak.py 500            # at the highest level of this machine
    python tools/soak.py 500 --level B --workers 2

Exits with 1 if a normal submission was judged wrong, a hostile one passed, or anything is left: a
process, a descriptor, a file, or memory that grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "sandbox")]

from attacks import DENIED, ENDED, PRELUDE  # noqa: E402
from process_tree import list_descendants, list_open_files, wait_until  # noqa: E402

from shardlab.catalogue.problem import load_problem  # noqa: E402
from shardlab.judge.judge import judge  # noqa: E402
from shardlab.judge.worker_pool import WORKERS, open_worker_pool  # noqa: E402

PROBLEM = ROOT / "src/shardlab/catalogue/problems/c-collectives/shard-map-psum"
MESHES = ("data=2", "data=4", "rows=3")
SHORT_LIMITS = {"wall_seconds": 1.0, "cpu_seconds": 1.0, "memory_bytes": 400 << 20}
NOT_PSUM = ("jax.lax.pmax(", "(lambda part, axis: part)(", "jax.lax.pmean(")
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
REPEATABLE = {name: source for name, source in DENIED.items() if "20,000" not in name}
FORGERIES = {
    "patched numpy and builtins": """
import builtins, numpy, jax
numpy.allclose = numpy.array_equal = builtins.all = builtins.abs = lambda *a, **k: True
def shard_map_psum(x, mesh=None):
    return x[0] * 0
""",
    "responses of the runner sent by the tracer": """
import os
from shardlab.judge.protocol.responses import RunResponse
from shardlab.judge.protocol.run_result import RunResult
from shardlab.sandbox.frame import frame_bytes
result = RunResult(outputs=(), collectives=(), peak_bytes=0, has_shard_map=True)
forged = frame_bytes(RunResponse(result=result).to_frame())
def shard_map_psum(x, mesh=None):
    os.write(4, forged)
    return x.sum()
""",
    "an array that equals everything": """
import numpy as np
class Equal(np.ndarray):
    def __eq__(self, other): return True
    def __array__(self, *a, **k): return np.zeros(self.shape)
def shard_map_psum(x, mesh=None):
    return np.zeros(()).view(Equal)
""",
    "the right numbers without any collective": """
import jax, numpy as np
def shard_map_psum(x, mesh=None):
    return np.asarray(np.sum(np.asarray(jax.device_get(x))))
""",
    "a patched tracer that reports no findings": """
import jax, jax.numpy as jnp
from shardlab.judge.worker import tracer
respond = lambda self, request: tracer.ExportResponse(program=b'program')
tracer.Tracer._dispatch_request = respond
def shard_map_psum(x, mesh=None):
    return jnp.sum(x)
""",
    "not a number": """
import jax.numpy as jnp
def shard_map_psum(x, mesh=None):
    return jnp.float32('nan')
""",
}


def main() -> int:
    options = parse_options()
    problem = reduce_problem(load_problem(PROBLEM))
    before = find_resources()
    with open_worker_pool(options.level) as pool:
        run = SoakRun(pool, problem)
        started = time.monotonic()
        with ThreadPoolExecutor(options.workers) as executor:
            for number in executor.map(run.judge_one, range(options.n)):
                if number % max(options.n // 10, 1) == 0 and options.workers == 1:
                    run.take_sample()
        seconds = time.monotonic() - started
        run.wait_until_idle()
        run.take_sample()
        level = pool.level
    wait_until(lambda: not find_leftovers(before, find_resources()))
    report = {
        "level": level,
        "submissions": options.n,
        "hostile": run.n_hostile,
        "judged wrong": run.wrong,
        "seconds": round(seconds, 1),
        "left": find_leftovers(before, find_resources()),
        "samples": run.samples,
        "memory is flat": is_flat(run.samples),
    }
    print(json.dumps(report, indent=1))
    return int(bool(run.wrong or report["left"] or not report["memory is flat"]))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, nargs="?", default=500)
    parser.add_argument("--level", choices="ABC")
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def reduce_problem(problem):
    """Return the second part alone and on few meshes, so that processes start and end quickly."""
    parts = (replace(problem.parts[1], meshes=MESHES, simulated_meshes=()),)
    return replace(problem, parts=parts)


class SoakRun:
    """The submissions, what was judged wrong, and samples of memory on the way."""

    def __init__(self, pool, problem):
        self._pool, self._problem = pool, problem
        self._solution = problem.read_text("solution.py")
        self._wrong = [self._solution.replace("jax.lax.psum(", other) for other in NOT_PSUM]
        # Without confinement the others would hurt the machine: there, only what ends itself runs.
        hostile = {name: source for name, (source, _) in ENDED.items() if "fork" not in name}
        if pool.level != "C":
            hostile["all at once"] = self._create_batch()
        self._hostile = list({**hostile, **FORGERIES}.items())
        self.n_hostile, self.wrong, self.samples = 0, [], []

    def _create_batch(self) -> str:
        targets = {"level": "A", "judge": os.getpid(), "link": "/x", "solution": "/x"}
        attacks = "\n".join(
            f"try: exec({source!r})\nexcept BaseException: pass" for source in REPEATABLE.values()
        )
        return f"{PRELUDE}\nTARGETS = {targets!r}\nJUDGE = 1\n{attacks}"

    def judge_one(self, number: int) -> int:
        if number % 3 == 2:
            name, source = self._hostile[number // 3 % len(self._hostile)]
            self.n_hostile += 1
            limited = replace(self._problem, limits=SHORT_LIMITS)
            if self._judge_source(limited, source, number).passed:
                self.wrong.append(f"{number}: {name} passed")
            return number
        is_right = number % 3 == 0
        source = self._solution if is_right else self._wrong[number % len(self._wrong)]
        judgement = self._judge_source(self._problem, source, number)
        if judgement.passed != is_right:
            codes = [v.code for case in judgement.cases for v in case.verdicts]
            self.wrong.append(f"{number}: {'right' if is_right else 'wrong'} one judged {codes}")
        return number

    def _judge_source(self, problem, source, seed):
        return judge(self._pool, problem, source, kind="submit", seed=seed)

    def wait_until_idle(self) -> None:
        """Wait until only the fork server is left, with the processes that it forked ahead."""
        n_idle = len(self._server_pids()) + 2 * len(WORKERS.ready_roles)
        wait_until(lambda: len(list_descendants(os.getpid())) <= n_idle)

    def take_sample(self) -> None:
        pids = [os.getpid(), *self._server_pids()]
        self.samples.append(
            {
                "processes": len(list_descendants(os.getpid())),
                "descriptors": len(list_open_files()),
                "judge MB": private_megabytes(pids[0]),
                "fork server MB": private_megabytes(pids[-1]),
            }
        )

    def _server_pids(self):
        """Return what each fork server consists of: wrappers around it, then itself."""
        pids = []
        for pid in self._pool.zygote_pids:
            # Down to the first process that has loaded JAX: all above it are small.
            for descendant in [pid, *list_descendants(pid)]:
                pids.append(descendant)
                if private_megabytes(descendant) > _LOADED_MEGABYTES:
                    break
        return pids


_LOADED_MEGABYTES = 40.0


def private_megabytes(pid: int) -> float:
    """Return the memory of a process that it shares with no other."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def find_resources() -> dict[str, set[str]]:
    names = itertools.chain(*(os.listdir(folder) for folder in FOLDERS if os.path.isdir(folder)))
    return {
        "processes": set(map(str, list_descendants(os.getpid()))),
        "descriptors": set(list_open_files()),
        "files": {name for name in names if "shardlab" in name},
    }


def find_leftovers(before, after) -> dict[str, list[str]]:
    added = {name: sorted(after[name] - before[name]) for name in after}
    return {name: items for name, items in added.items() if items}


def is_flat(samples) -> bool:
    """Return whether the second half of the run took at most 10% more memory than the first."""
    half = samples[len(samples) // 2]
    names = ("judge MB", "fork server MB")
    return all(samples[-1][name] <= 1.1 * half[name] + 4 for name in names)


if __name__ == "__main__":
    sys.exit(main())
