"""A SLURM cluster of one node on this machine, from Debian's slurm-wlm, for the tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 60  # ends a hang only
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")

_CONFIG = """
ClusterName=shardlab
SlurmctldHost={host}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def is_installed() -> bool:
    return all(map(shutil.which, PROGRAMS))


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start munged, slurmctld and slurmd; yield the environment in which srun finds them."""
    host = socket.gethostname()
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    folder.chmod(0o755)
    key = folder / "munge" / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    ports = _free_ports(2)
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(
            host=host,
            folder=folder,
            user="root" if os.getuid() == 0 else os.environ.get("USER", "root"),
            controller_port=ports[0],
            node_port=ports[1],
            cpus=os.cpu_count(),
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(config)}
    munge = [
        "munged",
        "--foreground",
        "--force",
        f"--socket={folder}/munge.socket",
        f"--key-file={key}",
        f"--log-file={folder}/munge.log",
        f"--pid-file={folder}/munge.pid",
        f"--seed-file={folder}/munge/munge.seed",
    ]
    with contextlib.ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", host]):
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(_end, process)
            if command is munge:
                _wait_for(lambda: (folder / "munge.socket").exists(), folder)
        _wait_for(lambda: _is_idle(environment), folder)
        yield environment


def _is_idle(environment: dict[str, str]) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == "idle"


def _wait_for(is_ready, folder: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_ready():
        if time.monotonic() > end:
            logs = [path.read_text("utf-8", "replace")[-2000:] for path in folder.glob("*.log")]
            raise AssertionError("SLURM does not start:\n" + "\n".join(logs))
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
