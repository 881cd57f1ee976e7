"""Child process of `calculon_points`: runs Calculon on its Megatron points, prints seconds as JSON.

`python calculon_worker.py FOLDER NAME ...`: FOLDER is a clone of calculon-ai/calculon, NAME a file
of its validation/seqsel/tab5, such as gpt3-175B_full. It imports nothing of shardlab.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def main(folder: Path, names: list[str]) -> dict[str, float]:
    """Return the seconds of a step that Calculon estimates for each point."""
    sys.path.insert(0, str(folder))
    for module in ("pandas", "psutil"):
        # Imported by its search commands, which do not run here.
        if find_spec(module) is None:
            sys.modules[module] = ModuleType(module)
    from calculon.llm.llm import Llm  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    system = System(_read_json(folder / "systems" / "a100_80g.json"))
    seconds = {}
    for name in names:
        model = folder / "models" / f"{name.rsplit('_', 1)[0]}.json"
        execution = folder / "validation" / "seqsel" / "tab5" / f"{name}.json"
        llm = Llm(Llm.Application(_read_json(model)), logging.getLogger())
        llm.compile(system, Llm.Execution.from_json(_read_json(execution)))
        llm.run(system)
        seconds[name] = llm.get_stats_json(False)["total_time"]
    return seconds


def _read_json(path: Path) -> object:
    return json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
