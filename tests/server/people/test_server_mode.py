"""Server mode starts only with a secret that cannot be guessed and with confinement at level A."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest
from click.testing import CliRunner
from people_server import PeopleServer

from shardlab.cli import main
from shardlab.errors import (
    InvalidServerOption,
    SandboxLevelUnavailable,
    SecretMissing,
    WeakSecret,
)
from shardlab.sandbox.fork_server import ZygoteError
from shardlab.sandbox.pool import ForkServerPool
from shardlab.server.server_mode import (
    check_confinement,
    check_secret,
    check_settings,
    read_secret,
)
from shardlab.server.settings import ServerSettings


def run_serve(*arguments, environ=None):
    return CliRunner().invoke(main, ["serve", "--accounts", *arguments], env=environ or {})


@pytest.fixture(autouse=True)
def no_secret_in_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SHARDLAB_SECRET", raising=False)
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path / "data"))


def test_without_a_secret_the_server_does_not_start(tmp_path):
    result = run_serve()
    assert result.exit_code == 2
    assert "[server.secret_missing]" in result.output
    result = run_serve("--secret-file", str(tmp_path / "missing"))
    assert "[server.secret_missing]" in result.output


@pytest.mark.parametrize(
    "secret",
    [
        "short",
        "a" * 64,
        "abab" * 20,
        "change-me-change-me-change-me-0123456789",
        "this is the default secret of nobody 123",
        "VRMV5m2SjvM87pT5EHU4DBlHcFo",  # random, and too short
        "0123456789abcdef0123456789abcdef",
        "fedcba9876543210" * 4,
        "qwertyuiopasdfghjklzxcvbnm123456",
        "aB3$xY7!mN5%" * 4,
    ],
)
def test_a_secret_that_can_be_guessed_is_refused_and_never_shown(secret):
    result = run_serve(environ={"SHARDLAB_SECRET": secret})
    assert result.exit_code == 2
    assert "[server.weak_secret]" in result.output
    assert secret not in result.output
    with pytest.raises(WeakSecret):
        check_secret(secret, "here")


def test_random_secrets_of_32_characters_are_accepted():
    for _ in range(200):
        check_secret(secrets.token_urlsafe(24), "here")
    check_secret("ac8e0f0d35b85fdc82bb3f7f1a4a70d9", "here")  # 16 random bytes


def test_a_random_secret_is_read_from_a_file_or_the_environment(tmp_path):
    secret = "mQ0s9vYk3-tZrW8xLcP2bHdN5gJfUeAq7TiRoKwX"
    (tmp_path / "key").write_text(secret + "\n")
    assert read_secret(tmp_path / "key", {}) == secret
    assert read_secret(None, {"SHARDLAB_SECRET": secret}) == secret
    with pytest.raises(SecretMissing):
        read_secret(None, {"SHARDLAB_SECRET": "  "})
    (tmp_path / "binary").write_bytes(b"\xff" * 64)
    with pytest.raises(SecretMissing, match="not text"):
        read_secret(tmp_path / "binary", {})


def test_settings_never_show_their_secret(tmp_path):
    assert "hidden" not in repr(ServerSettings(data_folder=tmp_path, secret="hidden" * 9))


def test_below_level_a_the_server_does_not_start(tmp_path, monkeypatch):
    check_confinement(tmp_path)  # level A holds on this machine
    run_self_test = ForkServerPool._run_self_test

    def find_breach(pool, fork_server):
        run_self_test(pool, fork_server)
        raise ZygoteError("fork", is_internal=False)

    monkeypatch.setattr(ForkServerPool, "_run_self_test", find_breach)
    with pytest.raises(SandboxLevelUnavailable, match="level A"):
        check_confinement(tmp_path)
    result = run_serve(environ={"SHARDLAB_SECRET": secrets.token_urlsafe(48)})
    assert result.exit_code == 2
    assert "[sandbox.level_unavailable]" in result.output


def test_workers_of_a_server_never_run_below_level_a(tmp_path):
    server = PeopleServer(tmp_path, n_workers=1)
    (supervisor,) = server.app.state.jobs.supervisors
    assert supervisor._options.minimum_level == "A"
    server.close()


def test_other_machines_are_served_only_under_a_name(tmp_path):
    settings = ServerSettings(data_folder=tmp_path, mode="accounts", host="0.0.0.0")
    with pytest.raises(InvalidServerOption, match="No host name"):
        check_settings(settings)
    check_settings(replace(settings, public_hosts=("lab.example.org",)))
    for name in ("https://lab.example.org", "*", "lab.example.org/x", ""):
        with pytest.raises(InvalidServerOption):
            check_settings(replace(settings, public_hosts=(name,)))


def test_local_mode_has_no_option_that_opens_it_to_other_machines():
    for option in (("--host", "0.0.0.0"), ("--public-host", "x"), ("--https",)):
        result = CliRunner().invoke(main, ["serve", *option])
        assert result.exit_code == 2
        assert "need --accounts" in result.output


def test_a_real_server_starts_serves_the_sign_in_and_ends(tmp_path):
    secret_file = tmp_path / "secret"
    secret_file.write_text(secrets.token_urlsafe(48))
    command = [sys.executable, "-m", "shardlab", "serve", "--accounts", "--port", "0"]
    command += ["--secret-file", str(secret_file), "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"http://[\d.:]+/", line)[0]
            with urllib.request.urlopen(f"{url}classes", timeout=60) as response:
                assert response.url.startswith(f"{url}sign-in?next=")
                assert "Sign in" in response.read().decode()
                assert response.headers["server"] is None
        finally:
            process.terminate()
        assert process.wait(60) in (0, -15)
