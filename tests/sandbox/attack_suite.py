"""Runs every attack against a pool, as the user who starts this: `python attack_suite.py A`.

Prints JSON: {"level": "A", "succeeded": [...], "exits": {name: kind}, "is_judging": {name: bool},
"remaining_files": [...]}. `is_judging` says whether a normal submission worked after each attack.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from attacks import DENIED, ENDED, NOT_AT_C, PRELUDE

import shardlab
from shardlab.judge.protocol.reports import FunctionCall
from shardlab.judge.protocol.requests import CallRequest, LoadRequest
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.sandbox.process import ProcessEnded, ProcessLimits

CANARY = "-".join(("expected", "canary", "value"))
# For attacks that would run forever: whatever the machine does meanwhile, they end by this limit.
SHORT = ProcessLimits(wall_seconds=0.5)
XLA = ProcessLimits(wall_seconds=2.0)  # forever as well, once XLA has started
SMALL = ProcessLimits(
    memory_bytes=400 << 20, wall_seconds=600.0
)  # less memory is filled in less time
BATCH_LIMITS = ProcessLimits(wall_seconds=600.0, cpu_seconds=120.0)

BATCH = """
{prelude}
TARGETS = {targets!r}
JUDGE = TARGETS['judge']
succeeded = []
for name, attack in {attacks!r}.items():
    try:
        exec(attack, globals())
    except (Exception, SystemExit):
        pass
    else:
        succeeded.append(name)
print('SUCCEEDED', json.dumps(succeeded))
"""


def main(level: str) -> dict:
    os.environ["JUDGE_SECRET"] = "swordfish"
    with tempfile.TemporaryDirectory() as folder:
        targets, sockets = create_targets(Path(folder), level)
        pool = open_worker_pool(level, hidden_paths=[targets["database"]])
        try:
            result = {"level": pool.level, "user": os.getuid(), **attack_pool(pool, targets)}
        finally:
            pool.close()
        del sockets
        result["remaining_files"] = sorted(os.listdir(folder))
    return result


def create_targets(folder: Path, level: str):
    """Return what attacks are after, and the sockets that must stay open meanwhile."""
    package = Path(shardlab.__file__).parent
    (folder / "practice.db").write_text("secret")
    (folder / "link").symlink_to("/etc/passwd")
    tcp = socket.create_server(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    abstract.bind(f"\0shardlab-{os.getpid()}")
    for server in (unix, abstract):
        server.listen()
    folder.chmod(0o755)
    (folder / "socket").chmod(0o777)
    loader = next(Path("/usr/lib").rglob("ld-linux*.so*"), Path("/bin/true"))
    targets = {
        "level": level,
        "solution": str(next((package / "catalogue" / "problems").rglob("solution.py"))),
        "database": str(folder / "practice.db"),
        # Empty, because without confinement a plain user can truncate it.
        "own": str(package / "py.typed"),
        "link": str(folder / "link"),
        "suite": str(Path(__file__).resolve()),
        "home": str(Path.home()) if os.access(Path.home(), os.R_OK) else "/home",
        "port": tcp.getsockname()[1],
        "unix": str(folder / "socket"),
        "abstract": f"\0shardlab-{os.getpid()}",
        "judge": os.getpid(),
        "loader": str(loader),
    }
    return targets, (tcp, unix, abstract)


def attack_pool(pool, targets):
    is_c = targets["level"] == "C"
    denied = {name: code for name, code in DENIED.items() if not (is_c and name in NOT_AT_C)}
    batch = BATCH.format(prelude=PRELUDE, targets=targets, attacks=denied)
    batch_exit, output = load_source(pool, batch, BATCH_LIMITS)
    succeeded = output.partition("SUCCEEDED ")[2].partition("\n")[0]
    exits, is_judging, seconds = {}, {"all that are denied": judges_normally(pool)}, {}
    for name, (source, kinds) in ENDED.items():
        if is_c and name in NOT_AT_C:
            continue
        limits = XLA if "XLA" in name else SHORT if kinds == {"time"} else SMALL
        started = time.monotonic()
        exits[name], printed = load_source(pool, source, limits)
        if "STARTED 3000" in printed:
            exits[name] = "succeeded"
        seconds[name] = round(time.monotonic() - started, 2)
        is_judging[name] = judges_normally(pool)
    return {
        "batch": batch_exit,
        "succeeded": json.loads(succeeded) if succeeded else None,
        "exits": exits,
        "is_judging": is_judging,
        "seconds": seconds,
        "output": output[-2000:] if not succeeded else "",
    }


def load_source(pool, source, limits):
    """Return how loading a submission ended, and what it printed."""
    process = pool.start_process("tracer", limits)
    request = LoadRequest(source=source.encode())
    try:
        response = request.parse_response(process.request(request.to_frame()))
        return ("error" if response.error else "response"), process.output
    except ProcessEnded as ended:
        return ended.reason.kind, process.output
    finally:
        process.close()


def judges_normally(pool) -> bool:
    """Return whether a normal submission works as if nothing had happened."""
    process = pool.start_process("tracer", ProcessLimits())
    try:
        return call_next_number(process) == 42
    except ProcessEnded as ended:
        print(ended, process.output, file=sys.stderr)
        return False
    finally:
        process.close()


def call_next_number(process):
    """Return the value of a small submission: 42."""
    load = LoadRequest(source=b"def next_number(n): return n + 1")
    assert load.parse_response(process.request(load.to_frame())).error is None
    call = FunctionCall(function="next_number", argument_names=("n",), packed_inputs={"n": 41})
    request = CallRequest(call=call)
    return request.parse_response(process.request(request.to_frame())).value()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
