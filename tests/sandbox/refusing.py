"""Opens a house where the kernel refuses a system call, and prints its level.

    python refusing.py unshare

The refusal is a seccomp filter that this process sets for itself and all it starts.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

from shardlab.errors import SandboxLevelUnavailable
from shardlab.sandbox import kernel
from shardlab.sandbox.pool import open_sandbox_pool

NUMBERS = {
    "x86_64": {"unshare": 272, "mount": 165, "landlock": 444, "seccomp": 317, "prctl": 157},
    "aarch64": {"unshare": 97, "mount": 40, "landlock": 444, "seccomp": 277, "prctl": 167},
}


def refuse(name: str) -> None:
    number = NUMBERS[platform.machine()][name]
    load, is_equal, give = 0x20, 0x15, 0x06
    steps = [
        (load, 0, 0, 0),
        (is_equal, 0, 1, number),
        (give, 0, 0, 0x50000 | errno.EPERM),
        (give, 0, 0, 0x7FFF0000),
    ]
    kernel.set_filter(b"".join(struct.pack("HBBI", *step) for step in steps))


if __name__ == "__main__":
    if sys.argv[1] != "nothing":
        refuse(sys.argv[1])
    with open_sandbox_pool() as house:
        print(house.level)
    try:
        open_sandbox_pool(at_least="A").close()
        print("at least A")
    except SandboxLevelUnavailable as error:
        print(error.where)
