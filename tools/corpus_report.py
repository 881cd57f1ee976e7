"""Check every training program of the corpus, and print what was found and which causes are right.

    python tools/corpus_report.py                all programs
    python tools/corpus_report.py tp_ ring_      those whose name starts so
    python tools/corpus_report.py --verbose      also one line per program

Exits with 1 if a program gets a wrong cause or a false alarm, or fewer than 95 % are found.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "oracle" / "corpus"))

from training import FIRST, FOURTH, SECOND, THIRD, programs
from training.measure import Outcome, measure, outcome_table

GOAL_FOUND = 0.95


def main(arguments: list[str]) -> int:
    is_verbose = "--verbose" in arguments
    prefixes = tuple(item for item in arguments if not item.startswith("--")) or ("",)
    groups = {"First set": FIRST, "Second set": SECOND, "Third set": THIRD, "Fourth set": FOURTH}
    outcomes: list[Outcome] = []
    for title, names in groups.items():
        chosen = tuple(name for name in names if name.startswith(prefixes))
        if not chosen:
            continue
        start = time.perf_counter()
        group = []
        for program in programs(chosen):
            group += measure([program])
            if is_verbose:
                print(group[-1], flush=True)
        seconds = time.perf_counter() - start
        print(f"{title}: {len(group)} programs in {seconds:.0f} s\n{outcome_table(group)}\n")
        outcomes += group
    is_good = all(item.outcome not in ("wrong cause", "false alarm") for item in outcomes)
    wrong = [item for item in outcomes if item.program.bug]
    n_found = sum(item.outcome != "missed" for item in wrong)
    share = n_found / max(len(wrong), 1)
    print(f"{n_found} of {len(wrong)} bugs found: {share:.0%} (goal {GOAL_FOUND:.0%}).")
    return 0 if is_good and share >= GOAL_FOUND else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
