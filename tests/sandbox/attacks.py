"""Attacks on the judge, each a few lines of a submission.

DENIED   must raise in a confined process; many run in one process, which survives them
ENDED    end their process, or make it end: with the kinds of exit that are right for each
"""

from __future__ import annotations

# Known to every attack. `TARGETS` is what they are after, filled in by attack_suite.py.
PRELUDE = """
import ctypes, gc, json, mmap, os, resource, signal
import socket, struct, subprocess, sys, time
import numpy as np
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
IS_ARM = os.uname().machine == "aarch64"
"""

DENIED = {
    # ---------------------------------------------------------------------------- secrets
    "inherited descriptors": """
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
assert any(map(is_open, range(5, 512)))
""",
    "environment": "assert any('SECRET' in name for name in os.environ)",
    "environment of the start": "assert b'SECRET' in open('/proc/self/environ', 'rb').read()",
    "expected values in memory": """
needle = 'expected' + '-canary-' + 'value'
assert any(needle in text for text in gc.get_objects() if isinstance(text, str))
""",
    # ------------------------------------------------------------------------------ files
    "read /etc/passwd": "open('/etc/passwd').read()",
    "read through a symbolic link": "open(TARGETS['link']).read()",
    "read through /proc/self/root": "open('/proc/self/root/etc/passwd').read()",
    "read past a readable folder": "open('/usr/lib/../../etc/passwd').read()",
    "read a solution": "assert open(TARGETS['solution']).read()",
    "read the database": "assert open(TARGETS['database']).read()",
    "read the judge's folder": "open(TARGETS['suite']).read()",
    "list a home": "os.listdir(TARGETS['home'])",
    "list a hidden folder": "assert os.listdir(os.path.dirname(TARGETS['solution']))",
    "list the folders of a catalogue": """
folder = os.path.dirname(os.path.dirname(os.path.dirname(TARGETS['solution'])))
assert os.listdir(folder)
""",
    "open by handle": """
buffer = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 200)
call(264 if IS_ARM else 303, -100, b'/usr/lib', buffer, ctypes.create_string_buffer(8), 0)
""",
    "write one huge file": """
with open('/tmp/shardlab-huge', 'wb') as file:
    os.unlink('/tmp/shardlab-huge')
    file.truncate(1 << 40)
""",
    "write 20,000 files": """
for number in range(20_000):
    open(f'/tmp/shardlab-many-{number}', 'w').close()
    os.unlink(f'/tmp/shardlab-many-{number}')
""",
    "write into shared memory": """
open('/dev/shm/shardlab-x', 'w').close()
os.unlink('/dev/shm/shardlab-x')
""",
    "write into site-packages": """
path = os.path.dirname(np.__file__) + '/shardlab-x'
open(path, 'w').close()
os.unlink(path)
""",
    "write into the package": """
import shardlab
path = os.path.dirname(shardlab.__file__) + '/shardlab-x'
open(path, 'w').close()
os.unlink(path)
""",
    "change a mode": "os.chmod(TARGETS['own'], 0o700)",
    "change a time": "os.utime(TARGETS['own'])",
    "truncate a file": "os.close(os.open(TARGETS['own'], os.O_RDONLY | os.O_TRUNC))",
    "make a link": "os.symlink('/etc/passwd', '/tmp/shardlab-l'); os.unlink('/tmp/shardlab-l')",
    "make a pipe in a folder": "os.mkfifo('/tmp/shardlab-p'); os.unlink('/tmp/shardlab-p')",
    # ---------------------------------------------------------------------------- network
    "connect by TCP": "socket.create_connection(('127.0.0.1', TARGETS['port']), 1)",
    "listen by TCP": "socket.create_server(('127.0.0.1', 0))",
    "send by UDP": """
socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', TARGETS['port']))
""",
    "connect to a unix socket": "socket.socket(socket.AF_UNIX).connect(TARGETS['unix'])",
    "connect to an abstract socket": "socket.socket(socket.AF_UNIX).connect(TARGETS['abstract'])",
    "open a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "pair of sockets": "socket.socketpair()",
    # Allowed until the filter of system calls is complete: it must be EPERM, not a wrong argument.
    "send a descriptor": """
try:
    call(211 if IS_ARM else 46, 1, None, 0)
except OSError as error:
    if error.errno == 1:
        raise
""",
    "add a filter of system calls": """
if libc.prctl(22, 2, None, 0, 0) < 0 and ctypes.get_errno() == 1:
    raise OSError
""",
    # -------------------------------------------------------------------------- processes
    "fork": """
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
""",
    "leave a process behind": "subprocess.Popen(['/bin/sleep', '2'], start_new_session=True)",
    "spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "vfork": """
pid = call(220 if IS_ARM else 58, *([17, 0, 0, 0, 0] if IS_ARM else []))
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
""",
    "clone3": """
pid = call(435, ctypes.create_string_buffer(88), 88)
if pid == 0:
    os._exit(0)
""",
    "memfd": "os.memfd_create('x')",
    "memfd and fexecve": """
fd = os.memfd_create('x')
os.write(fd, open('/bin/true', 'rb').read())
assert os.posix_spawn(f'/proc/self/fd/{fd}', ['x'], {})
""",
    "run a readable library": "os.posix_spawn(TARGETS['loader'], ['x', '--version'], {})",
    "new session": "os.setsid() if os.getpgid(0) != os.getpid() else os.setpgid(0, 0)",
    # ------------------------------------------------------------------- other processes
    "signal the judge": "os.kill(JUDGE, 0)",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "signal everybody": "os.kill(-1, 0)",
    "signal the group": "os.kill(0, 0)",
    "kill itself as if from outside": "os.kill(os.getpid(), 9)",
    "SIGKILL by a timer": """
event = ctypes.create_string_buffer(struct.pack('qii', 0, 9, 0), 64)
call(107 if IS_ARM else 222, 0, event, ctypes.create_string_buffer(8))
""",
    "SIGKILL by a file": """
import fcntl
fcntl.fcntl(0, 10, 9)
""",
    "trace the parent": "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "trace itself": "check(libc.ptrace(0, 0, 0, 0))",
    "read the parent's memory": """
into, address = ctypes.create_string_buffer(8), id(None)
local = struct.pack('QQ', ctypes.addressof(into), 8)
check(libc.process_vm_readv(os.getppid(), local, 1, struct.pack('QQ', address, 8), 1, 0))
""",
    "read the judge's memory": """
into, address = ctypes.create_string_buffer(8), id(None)
local = struct.pack('QQ', ctypes.addressof(into), 8)
check(libc.process_vm_readv(JUDGE, local, 1, struct.pack('QQ', address, 8), 1, 0))
""",
    **{
        f"/proc/{whose}/{name}": f"open(f'/proc/{{{pid}}}/{name}', 'rb').read(1)"
        for whose, pid in (("judge", "JUDGE"), ("parent", "os.getppid()"))
        for name in ("mem", "environ", "maps", "cmdline")
    },
    "see other processes": "assert len([n for n in os.listdir('/proc') if n.isdigit()]) > 1",
    "limit the judge": "resource.prlimit(JUDGE, resource.RLIMIT_NOFILE)",
    "pin the judge": "os.sched_setaffinity(JUDGE, os.sched_getaffinity(0))",
    "slow the judge": "os.setpriority(os.PRIO_PROCESS, JUDGE, 5)",
    "descriptor of the judge": "os.pidfd_open(JUDGE)",
    # ----------------------------------------------------------------------------- rights
    "become root": "os.setuid(0); open('/etc/shadow').close()",
    "new user namespace": "check(libc.unshare(0x10000000))",
    "new mount namespace": "check(libc.unshare(0x20000))",
    "io_uring": "call(425, 1, ctypes.create_string_buffer(256))",
    "chroot": "os.chroot('/usr')",
    "mount": "check(libc.mount(b'x', b'/usr', b'tmpfs', 0, None))",
    "bpf": "call(280 if IS_ARM else 321, 0, ctypes.create_string_buffer(128), 128)",
    "perf_event_open": """
call(241 if IS_ARM else 298, ctypes.create_string_buffer(128), 0, -1, -1, 0)
""",
    "userfaultfd": "call(282 if IS_ARM else 323, 1)",
    "keyring": "call(219 if IS_ARM else 250, 0, -3, 1)",
    "SysV shared memory": """
number = check(libc.shmget(0, 4096, 0o1600))
libc.shmctl(number, 0, None)
""",
    "SysV messages": """
number = check(libc.msgget(0, 0o1600))
libc.msgctl(number, 0, None)
""",
    "be dumpable": "check(libc.prctl(4, 1, 0, 0, 0))",
    "outlive the parent": "check(libc.prctl(1, 0, 0, 0, 0))",
    "type into a terminal": "check(libc.ioctl(0, 0x5412, b'x'))",
    # ----------------------------------------------------------------------------- limits
    "allocate 100 GB": "np.ones(100 << 30, np.uint8)",
    "map 100 GB": "mmap.mmap(-1, 100 << 30)",
    "raise a limit": """
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    "share memory, which is in no process's figures": "mmap.mmap(-1, 4096)",
    "share zeros": """
fd = os.open('/dev/zero', os.O_RDONLY)
mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
""",
    "lower a limit that kills": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "lower it by another call": "resource.prlimit(0, resource.RLIMIT_CPU, (1, 1))",
    "lower it by the oldest call": """
call(164 if IS_ARM else 160, resource.RLIMIT_CPU, struct.pack('QQ', 1, 1))
""",
    "500 open files": """
opened = []
try:
    for _ in range(500):
        opened.append(os.dup(0))
finally:
    for fd in opened:
        os.close(fd)
""",
}
# What fails even without confinement: by limits, and because there is nothing to find.
HELD_AT_C = {
    "write one huge file",
    "allocate 100 GB",
    "map 100 GB",
    "raise a limit",
    "500 open files",
    "inherited descriptors",
    "environment",
    "environment of the start",
    "expected values in memory",
}
# What succeeds without confinement as any user: the proof that the attacks are real.
SUCCEEDS_AT_C = {
    "read /etc/passwd",
    "read through a symbolic link",
    "read a solution",
    "read the judge's folder",
    "write 20,000 files",
    "connect by TCP",
    "listen by TCP",
    "send by UDP",
    "connect to a unix socket",
    "connect to an abstract socket",
    "pair of sockets",
    "fork",
    "leave a process behind",
    "spawn",
    "memfd",
    "memfd and fexecve",
    "see other processes",
    "SIGKILL by a timer",
    "share memory, which is in no process's figures",
    "be dumpable",
    "outlive the parent",
    "SysV shared memory",
    "SysV messages",
    "/proc/judge/cmdline",
}

# What would hurt the machine that runs the tests, or the process that tries the others.
NOT_AT_C = {
    "vfork",
    "kill itself as if from outside",
    "lower a limit that kills",
    "lower it by another call",
    "lower it by the oldest call",
    "trace itself",
    "trace the parent",
    "signal everybody",
    "fork bomb",
    "system call of a 32-bit program",
}

# name -> (source, kinds of exit; "error" = it responded with an error and lives)
ENDED = {
    "busy loop": ("while True: pass", {"time"}),
    "sleep": ("import time\ntime.sleep(3600)", {"time"}),
    "stop itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"time"}),
    "ignore signals": (
        """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
while True:
    time.sleep(1)
""",
        {"time"},
    ),
    "endless XLA loop": (
        """
import jax
jax.config.update('jax_enable_x64', False)
print(jax.jit(lambda x: jax.lax.while_loop(lambda i: i >= 0, lambda i: (i + 1) % 1000, x))(0))
""",
        {"time"},
    ),
    "endless import": (
        """
import sys
class Endless:
    def find_spec(self, name, path=None, target=None):
        while True:
            pass
sys.meta_path.insert(0, Endless())
import nothing_of_that_name
""",
        {"time"},
    ),
    "threads that never stop": (
        """
import threading
def burn():
    while True:
        pass
for _ in range(4):
    threading.Thread(target=burn, daemon=True).start()
while True:
    pass
""",
        {"time"},
    ),
    "touch 3 GB": (
        """
import mmap
space = mmap.mmap(-1, 3 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, 3 << 30, 4096):
    space[offset] = 1
""",
        {"memory", "error"},
    ),
    "touch 3 GB of its own": (
        "chunks = []\nwhile True:\n    chunks.append(bytearray(b'x') * (64 << 20))",
        {"memory", "error"},
    ),
    "3000 threads": (
        """
import threading, time
threading.stack_size(64 << 10)
for _ in range(3000):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
print('STARTED 3000')
time.sleep(3600)
""",
        {"memory", "error"},
    ),
    "fork bomb": (
        """
import os
def bomb():
    for _ in range(3):
        if os.fork() == 0:
            bomb()
            os._exit(0)
bomb()
""",
        {"error"},
    ),
    "sys.exit": ("import sys\nsys.exit(0)", {"exit", "error"}),
    "os._exit": ("import os\nos._exit(0)", {"exit"}),
    "atexit writes a response": (
        """
import atexit, os, sys
from shardlab.judge.protocol.responses import LoadResponse
from shardlab.sandbox.frame import frame_bytes
atexit.register(os.write, 4, frame_bytes(LoadResponse(defined_names=('forged',)).to_frame()))
sys.exit(0)
""",
        {"exit", "error"},
    ),
    "null dereference": ("import ctypes\nctypes.string_at(0)", {"signal"}),
    "system call of a 32-bit program": (
        """
import ctypes, mmap, os
if os.uname().machine != 'x86_64':
    os.abort()  # it has no such calls
code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
code.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
""",
        {"signal"},
    ),
    "memory after the exit of the first thread": (
        """
import ctypes, mmap, os, threading, time
def fill():
    time.sleep(0.2)
    space = mmap.mmap(-1, 500 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, 500 << 20, 4096):
        space[offset] = 1
    while True:
        pass
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall(93 if os.uname().machine == 'aarch64' else 60, 0)
""",
        {"memory"},
    ),
    "flood of rejected calls": (
        """
import socket
while True:
    try:
        socket.socket()
    except OSError:
        pass
""",
        {"time"},
    ),
    "SIGXCPU to itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)", {"signal"}),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", {"exit", "error"}),
    "SIGTERM to itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", {"signal"}),
    "abort": ("import os\nos.abort()", {"signal"}),
    "deep recursion": (
        """
import sys
sys.setrecursionlimit(10**9)
class Deep:
    def __getattr__(self, name):
        return getattr(self, name + 'x')
def deep(n):
    return deep(n + 1)
def deeper(x):
    return [*map(deeper, [x])]
deeper(1)
""",
        {"signal", "error", "memory"},
    ),
    "output flood": (
        "import os\nwhile True:\n    os.write(1, b'x' * 65536)",
        {"output"},
    ),
    "garbage as a response": (
        "import os\nos.write(4, b'garbage' * 100)\nos.read(3, 1)",
        {"protocol"},
    ),
    "a response of 4 GB": (
        "import os\nos.write(4, b'\\xff' * 8)\nos.read(3, 1)",
        {"protocol"},
    ),
    "half a response": (
        "import os, struct\nos.write(4, struct.pack('<II', 100, 0) + b'{')\nos.read(3, 1)",
        {"time"},
    ),
    "nested JSON": (
        """
import os, struct
bomb = b'[' * 500_000 + b']' * 500_000
data = memoryview(struct.pack('<II', len(bomb), 0) + bomb)
while data:
    data = data[os.write(4, data):]
os.read(3, 1)
""",
        {"protocol"},
    ),
    "close the pipe and hang": (
        "import os, time\nos.close(4)\ntime.sleep(3600)",
        {"protocol"},
    ),
    "close every pipe and hang": (
        "import os, time\nos.closerange(0, 100)\ntime.sleep(3600)",
        {"protocol"},
    ),
}
