"""Runs every attack against a house, as the user who starts this: `python suite.py A` prints JSON.

{"level": "A", "succeeded": [...], "endings": {name: why}, "normal": {name: bool}, "left": [...]}
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from attacks import ENDED, NOT_AT_C, PRELUDE, REFUSED

from shardlab.sandbox.frame import Frame
from shardlab.sandbox.pool import open_sandbox_pool
from shardlab.sandbox.process import Limits, ProcessEnded

CANARY = "-".join(("expected", "canary", "value"))
QUICK = Limits(wall_seconds=0.5)  # for what would take for ever
XLA = Limits(wall_seconds=2.0)  # for ever too, once XLA is started
SMALL = Limits(memory_bytes=400 << 20)  # for what takes all it gets: less of it takes less time

BATCH = """
{prelude}
GIVEN = {given!r}
JUDGE = GIVEN['judge']
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
        given, kept = surroundings(Path(folder), level)
        hidden = [given["database"]]
        house = open_sandbox_pool(level, hidden=hidden)
        try:
            result = {"level": house.level, "user": os.getuid(), **attacked(house, given)}
        finally:
            house.close()
        del kept
        result["left"] = sorted(os.listdir(folder))
    return result


def surroundings(folder: Path, level: str):
    """Return what attacks are after, and the objects that keep it there."""
    import shardlab

    package = Path(shardlab.__file__).parent
    (folder / "practice.db").write_text("secret")
    (folder / "link").symlink_to("/etc/passwd")
    tcp = socket.create_server(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    abstract.bind(f"\0shardlab-{os.getpid()}")
    for each in (unix, abstract):
        each.listen()
    folder.chmod(0o755)
    (folder / "socket").chmod(0o777)
    loader = next(Path("/usr/lib").rglob("ld-linux*.so*"), Path("/bin/true"))
    given = {
        "level": level,
        "solution": str(next((package / "problems").rglob("solution.py"))),
        "database": str(folder / "practice.db"),
        "own": str(package / "config.py"),
        "link": str(folder / "link"),
        "suite": str(Path(__file__).resolve()),
        "home": str(Path.home()) if os.access(Path.home(), os.R_OK) else "/home",
        "port": tcp.getsockname()[1],
        "unix": str(folder / "socket"),
        "abstract": f"\0shardlab-{os.getpid()}",
        "judge": os.getpid(),
        "loader": str(loader),
    }
    return given, (tcp, unix, abstract)


def attacked(house, given):
    is_c = given["level"] == "C"
    tried = {name: each for name, each in REFUSED.items() if not (is_c and name in NOT_AT_C)}
    attacks = BATCH.format(prelude=PRELUDE, given=given, attacks=tried)
    ending, output = asked(house, attacks, Limits(wall_seconds=30))
    told = output.partition("SUCCEEDED ")[2].partition("\n")[0]
    endings, normal, seconds = {}, {"all that is refused": is_well(house)}, {}
    for name, (source, whys) in ENDED.items():
        if is_c and name in NOT_AT_C:
            continue
        limits = XLA if "XLA" in name else QUICK if whys == {"time"} else SMALL
        started = time.monotonic()
        endings[name], printed = asked(house, source, limits)
        if "STARTED 3000" in printed:
            endings[name] = "succeeded"
        seconds[name] = round(time.monotonic() - started, 2)
        normal[name] = is_well(house)
    return {
        "batch": ending,
        "succeeded": json.loads(told) if told else None,
        "endings": endings,
        "normal": normal,
        "seconds": seconds,
        "output": output[-2000:] if not told else "",
    }


def asked(house, source, limits):
    """Return how an answer ended when it was loaded, and what it printed."""
    guest = house.guest("author", limits)
    try:
        answer = guest.ask(Frame({"do": "load"}, (source.encode(),)))
        # Threads may still be at work: the next request runs into their limit.
        return ("error" if "error" in answer.header else "answer"), guest.output
    except ProcessEnded as ended:
        return ended.ending.why, guest.output
    finally:
        guest.close()


def is_well(house) -> bool:
    """Return whether a normal answer is judged as if nothing had been."""
    guest = house.guest("author", Limits())
    try:
        guest.ask(Frame({"do": "load"}, (b"def next_number(n): return n + 1",)))
        asked = {"do": "call", "function": "next_number", "order": ["n"], "arguments": {"n": 41}}
        return guest.ask(Frame({**asked, "mesh": None, "specs": []})).header.get("value") == 42
    except ProcessEnded as ended:
        print(ended, guest.output, file=sys.stderr)
        return False
    finally:
        guest.close()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
