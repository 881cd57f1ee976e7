"""One process of a launch: connects to the others, runs the user's program, sends its records.

Started by `launcher.py`, on this machine or by ssh, with the job on standard input. Standard output
is the message channel; what the program prints goes to standard error. When standard input closes,
because the launcher has ended in any way, this process and its children are killed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from shardlab.cluster.messages import (
    Arrival,
    LaunchJob,
    Message,
    ProcessFailure,
    decode_message,
    encode_message,
)
from shardlab.cluster.process_progress import ProcessProgress
from shardlab.errors import LabError

Send = Callable[[Message], None]


def main() -> NoReturn:
    """Do one job; then wait for the launcher to end this process, so that none leaves early."""
    if os.getpid() != os.getpgrp():  # started by a shell, whose group is not ours to kill
        os.setpgid(0, 0)
    from shardlab.execution.worker import open_channel

    channel, line = open_channel()
    job = decode_message(line)
    assert isinstance(job, LaunchJob)
    lock = threading.Lock()

    def send(message: Message) -> None:
        text = encode_message(message) + "\n"
        with lock:
            channel.write(text)
            channel.flush()

    run_process(job, send)
    sys.stdout.flush()
    sys.stderr.flush()
    while True:
        time.sleep(3600)


def run_process(job: LaunchJob, send: Send) -> None:
    """Run the program of a job, and send its records or its failure."""
    progress = ProcessProgress(send)
    progress.start()
    try:
        record = _run_program(job, progress, send)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        send(_describe_failure(error, job, progress))
    else:
        send(record)
    finally:
        progress.stop()


def _run_program(job: LaunchJob, progress: ProcessProgress, send: Send) -> Any:
    sys.path.insert(0, "")  # replaced by the script's own folder, as `python` does
    from shardlab.cluster.real_run import connect, hidden_paths, run_observed

    progress.hidden_paths = hidden_paths()
    progress.enter("connecting")
    connect(job)
    import jax

    send(Arrival(host=socket.gethostname(), pid=os.getpid(), jax_version=jax.__version__))
    progress.enter("running")
    return run_observed(job, progress, send)


def _describe_failure(
    error: BaseException, job: LaunchJob, progress: ProcessProgress
) -> ProcessFailure:
    from dataclasses import replace

    from shardlab.cluster.run_target import loading_job
    from shardlab.execution.worker import describe_failure

    status = progress.status()
    failure = describe_failure(error, loading_job(job))
    # The frames of the program are gone from the stack; the traceback still has its line.
    if not isinstance(error, LabError) and failure.where:
        status = replace(status, line=failure.where)
    return ProcessFailure(failure=failure, status=status)


if __name__ == "__main__":
    main()
