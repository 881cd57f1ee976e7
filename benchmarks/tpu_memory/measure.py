"""`python -m benchmarks.tpu_memory.measure`: compiles all setups that have no record yet.

Needs the extra `shardlab[tpu]`, no TPU. One setup takes about ten seconds of one core. The records
are written to `benchmarks/data/tpu_memory.json` after each setup; delete one to compile it again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.tpu_memory.compile_step import compile_memory
from benchmarks.tpu_memory.setups import MemorySetup, all_setups

RECORDS_FILE = Path(__file__).parent.parent / "data" / "tpu_memory.json"


def main() -> None:
    """Compile the setups whose name contains a text, and write each record at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names of setups")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at the same time")
    options = parser.parse_args()
    data = _load()
    records: dict[str, Any] = {
        record["id"]: record for record in data["records"] if "error" not in record
    }
    setups = all_setups()
    missing = [item for item in setups if item.id not in records and options.only in item.id]
    with ThreadPoolExecutor(options.jobs) as pool:
        for record in pool.map(_measure, missing):
            print(
                f"{record['id']}: {record.get('peak', record.get('error', '')[-300:])}", flush=True
            )
            records[record["id"]] = record
            data["records"] = [records[item.id] for item in setups if item.id in records]
            RECORDS_FILE.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def _load() -> dict[str, Any]:
    if RECORDS_FILE.exists():
        data: dict[str, Any] = json.loads(RECORDS_FILE.read_text("utf-8"))
        return data
    versions = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    return {"compiler": versions, "records": []}


def _measure(setup: MemorySetup) -> dict[str, Any]:
    base = {"id": setup.id, "split": setup.split, "setup": setup.to_json()}
    memory = compile_memory(setup)
    if isinstance(memory, str):
        return {**base, "error": memory}
    return {**base, "peak": memory.peak, **asdict(memory)}


if __name__ == "__main__":
    main()
