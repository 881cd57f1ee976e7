"""A PostgreSQL server for tests: started and stopped by them, on loopback, without fsync."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

_BINARIES = "/usr/lib/postgresql"
_START_SECONDS = 120


def find_binaries():
    """Return the folder with `initdb` and `postgres`; None if there is none."""
    folders = sorted(
        Path(_BINARIES).glob("*/bin"),
        key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0,
        reverse=True,
    )
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def explain_missing_postgresql():
    """Return why PostgreSQL cannot be used here; empty if it can."""
    if find_binaries() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    try:
        import pgqueuer  # noqa: F401
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed (pip install 'shardlab[postgresql]')"
    if os.getuid() == 0 and not _has_user("postgres") and not _has_user("nobody"):
        return "PostgreSQL does not run as root, and there is no other user"
    return ""


def _has_user(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class PostgresqlCluster:
    """One server with its data in a temporary folder."""

    def __init__(self, *, listen="127.0.0.1", networks=()):
        self.binaries = find_binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="shardlab-postgresql-"))
        # postgres refuses to run as root.
        name = next(filter(_has_user, ("postgres", "nobody"))) if os.getuid() == 0 else None
        self._user = name
        if name is not None:
            owner = pwd.getpwnam(name)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.data = self.folder / "data"
        self._listen = listen
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process = None
        self._run("initdb", "--no-sync", "-D", self.data, "-U", "lab", "-A", "trust",
                  "--locale=C.UTF-8", "-E", "UTF8")  # fmt: skip

        with (self.data / "pg_hba.conf").open("a") as file:
            file.writelines(f"host all all {network} trust\n" for network in networks)

    def _command(self, program, *arguments):
        command = [str(self.binaries / program), *map(str, arguments)]
        if self._user is None:
            return command
        return ["setpriv", f"--reuid={self._user}", "--clear-groups", *command]

    def _run(self, program, *arguments):
        subprocess.run(
            self._command(program, *arguments),
            check=True, capture_output=True, cwd="/", timeout=_START_SECONDS,
        )  # fmt: skip

    def start(self):
        """Start the server, and wait until it takes connections."""
        settings = {
            "listen_addresses": self._listen,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "shared_buffers": "32MB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            self._command("postgres", "-D", self.data, *options),
            stdout=log, stderr=log, cwd="/", start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _is_ready(self):
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self):
        """Stop the server at once, as a restart of its machine would: connections are cut."""
        if self._process is None:
            return
        subprocess.run(
            self._command("pg_ctl", "stop", "-D", self.data, "-m", "immediate", "-w"),
            capture_output=True, cwd="/", timeout=_START_SECONDS, check=False,
        )  # fmt: skip
        self._process.wait(_START_SECONDS)
        self._process = None

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database):
        return f"postgresql://lab@127.0.0.1:{self.port}/{database}"

    def new_database(self, template="template1"):
        """Create a database, a copy of `template`; return its URL."""
        import psycopg

        name = f"lab_{secrets.token_hex(6)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, url):
        import psycopg

        name = url.rpartition("/")[2]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
