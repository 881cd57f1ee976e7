"""Judges many submissions in a row, a third of them hostile, and says what was left behind.

    python tools/endurance.py 500            # at the highest level of this machine
    python tools/endurance.py 500 --level B --workers 2

Ends with 1 if a normal answer was judged wrong, a hostile one passed, or anything was left: a
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

from attacks import ENDED, PRELUDE, REFUSED  # noqa: E402
from processes import descendants, open_files  # noqa: E402

from shardlab.catalogue.problem import load_problem  # noqa: E402
from shardlab.judge.judge import judge  # noqa: E402
from shardlab.sandbox.pool import open_sandbox_pool  # noqa: E402

PROBLEM = ROOT / "src/shardlab/catalogue/problems/c-collectives/shard-map-psum"
LADDER = ("data=2", "data=4", "rows=3")
QUICK = {"wall_seconds": 1.0, "cpu_seconds": 1.0, "memory_bytes": 400 << 20}
NOT_PSUM = ("jax.lax.pmax(", "(lambda part, axis: part)(", "jax.lax.pmean(")
PLACES = ("/tmp", "/dev/shm", "/var/tmp")
HARMLESS_TO_REPEAT = {k: v for k, v in REFUSED.items() if "20,000" not in k}
FORGERIES = {
    "patched numpy and builtins": """
import builtins, numpy, jax
numpy.allclose = numpy.array_equal = builtins.all = builtins.abs = lambda *a, **k: True
def shard_map_psum(x, mesh=None):
    return x[0] * 0
""",
    "frames sent instead of answers": """
import os
from shardlab.sandbox.frame import Frame, frame_bytes  # noqa: E402
forged = frame_bytes(Frame({'outputs': [], 'calls': [], 'peak_bytes': 0, 'has_shard_map': True}))
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
    "a patched jax that says it is all right": """
import jax, jax.numpy as jnp
from shardlab.judge.worker import author  # noqa: E402
author.Author.answer = lambda self, request: author.Frame({'findings': []}, (b'program',))
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
    asked = arguments()
    problem = small(load_problem(PROBLEM))
    before = left_now()
    with open_sandbox_pool(asked.level) as house:
        run = Run(house, problem)
        started = time.monotonic()
        with ThreadPoolExecutor(asked.workers) as workers:
            for number in workers.map(run.judge_one, range(asked.n)):
                if number % max(asked.n // 10, 1) == 0 and asked.workers == 1:
                    run.look()
        seconds = time.monotonic() - started
        time.sleep(0.5)  # for the last processes to end
        run.look()
        level = house.level
    report = {
        "level": level,
        "submissions": asked.n,
        "hostile": run.n_hostile,
        "judged wrong": run.wrong,
        "seconds": round(seconds, 1),
        "left": left(before, left_now()),
        "looks": run.looks,
        "memory is flat": is_flat(run.looks),
    }
    print(json.dumps(report, indent=1))
    return int(bool(run.wrong or report["left"] or not report["memory is flat"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, nargs="?", default=500)
    parser.add_argument("--level", choices="ABC")
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def small(problem):
    """Return the second part alone and on few meshes, so that processes come and go quickly."""
    parts = (replace(problem.parts[1], ladder=LADDER, large=()),)
    return replace(problem, parts=parts)


class Run:
    """The submissions, and what was seen on the way."""

    def __init__(self, house, problem):
        self._house, self._problem = house, problem
        self._right = problem.read_text("solution.py")
        self._not_right = [self._right.replace("jax.lax.psum(", other) for other in NOT_PSUM]
        batch = "\n".join(
            f"try: exec({source!r})\nexcept BaseException: pass"
            for source in HARMLESS_TO_REPEAT.values()
        )
        # Without confinement these would hurt the machine: there only what ends itself is sent.
        hostile = {name: source for name, (source, _) in ENDED.items() if "fork" not in name}
        if house.level != "C":
            given = {"level": "A", "judge": os.getpid(), "link": "/x", "solution": "/x"}
            hostile["all at once"] = f"{PRELUDE}\nGIVEN = {given!r}\nJUDGE = 1\n{batch}"
        self._hostile = list({**hostile, **FORGERIES}.items())
        self.n_hostile, self.wrong, self.looks = 0, [], []

    def judge_one(self, number: int) -> int:
        if number % 3 == 2:
            name, source = self._hostile[number // 3 % len(self._hostile)]
            self.n_hostile += 1
            if self._judged(replace(self._problem, limits=QUICK), source, number).passed:
                self.wrong.append(f"{number}: {name} passed")
            return number
        is_right = number % 3 == 0
        source = self._right if is_right else self._not_right[number % len(self._not_right)]
        judgement = self._judged(self._problem, source, number)
        if judgement.passed != is_right:
            codes = [v.code for case in judgement.cases for v in case.verdicts]
            self.wrong.append(f"{number}: {'right' if is_right else 'wrong'} one judged {codes}")
        return number

    def _judged(self, problem, source, seed):
        return judge(self._house, problem, source, kind="submit", seed=seed)

    def look(self):
        """Note how much there is of everything."""
        pids = [os.getpid(), *self._servers()]
        self.looks.append(
            {
                "processes": len(descendants(os.getpid())),
                "descriptors": len(open_files()),
                "judge MB": megabytes(pids[0]),
                "fork server MB": megabytes(pids[-1]),
            }
        )

    def _servers(self):
        first = self._house.zygote_pid
        inner = descendants(first)[:1] if self._house.level == "A" else []
        return [first, *inner]


def megabytes(pid: int) -> float:
    """Return the memory of a process that is its own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def left_now() -> dict[str, set[str]]:
    own = itertools.chain(*(os.listdir(place) for place in PLACES if os.path.isdir(place)))
    return {
        "processes": set(map(str, descendants(os.getpid()))),
        "descriptors": set(open_files()),
        "files": {name for name in own if "shardlab" in name},
    }


def left(before, after) -> dict[str, list[str]]:
    more = {name: sorted(after[name] - before[name]) for name in after}
    return {name: found for name, found in more.items() if found}


def is_flat(looks) -> bool:
    """Return whether the second half of the run took no more memory than the first, but for 10%."""
    half = looks[len(looks) // 2]
    return all(looks[-1][name] <= 1.1 * half[name] + 4 for name in ("judge MB", "fork server MB"))


if __name__ == "__main__":
    sys.exit(main())
