"""docs/deploy: units, proxy configurations and alerts name what exists, and can be read."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from shardlab.cli import main
from shardlab.server.access import ACCESS
from shardlab.server.operations.metrics import ServerMetrics
from shardlab.server.operations.metrics_text import Snapshot, _counted, _present
from shardlab.server.operations.quotas import ServerLimits, parse_limits
from shardlab.server.operations.storage import StorageFigures

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.*"))
SERVICES = [path for path in UNITS if path.suffix == ".service"]
PAGES = sorted(DEPLOY.glob("*.md"))


class Unit(configparser.RawConfigParser):
    """Reads a unit; a key that occurs again continues, as systemd reads it."""

    def __init__(self, path):
        super().__init__(strict=False, interpolation=None, delimiters=("=",))
        self.optionxform = str
        text = re.sub(r"\\\n\s*", "", path.read_text("utf-8"))
        self.read_string(text)


def command_options(words):
    """Return the click command of a command line, and the options that the line has."""
    command, context = main, click.Context(main)
    words = list(words)
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.get_command(context, name)
        if command is None:
            # Only with `shardlab worker`: PostgreSQL is not in this release.
            assert name == "worker"
            pytest.skip("this release has no command `shardlab worker`")
    return command, [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]


def assert_options_exist(words):
    command, options = command_options(words)
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    known |= {name for parameter in command.params for name in parameter.secondary_opts}
    assert [name for name in options if name not in known] == []


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_the_command_of_a_unit_is_one_of_the_command_line(path):
    program, *words = shlex.split(Unit(path)["Service"]["ExecStart"])
    assert program == "/opt/shardlab/bin/shardlab"
    assert_options_exist(words)


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_runs_as_a_plain_user_without_capabilities(path):
    service = Unit(path)["Service"]
    assert service["User"] == "shardlab"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    if service["Type"] == "exec":  # its workers compile programs, and make namespaces
        assert "MemoryDenyWriteExecute" not in service
        assert {"user", "pid", "mnt", "net"} <= set(service["RestrictNamespaces"].split())


@pytest.mark.parametrize("path", [u for u in SERVICES if "@" not in u.name], ids=lambda p: p.name)
def test_a_unit_has_more_time_to_stop_than_it_drains(path):
    service = Unit(path)["Service"]
    match = re.search(r"--drain-seconds (\d+)", service["ExecStart"])
    if match:
        assert int(service["TimeoutStopSec"]) > int(match[1]) + 20


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_reads_a_unit_without_complaint(path, tmp_path):
    if path.suffix not in (".service", ".timer"):
        pytest.skip("no unit")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for other in UNITS:  # a timer names its service; the program is not installed here
        text = other.read_text("utf-8").replace("/opt/shardlab/bin/shardlab", "/bin/true")
        (tmp_path / other.name.replace("@.", "@1.")).write_text(text)
    unit = tmp_path / path.name.replace("@.", "@1.")
    result = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in result.stderr.splitlines() if str(tmp_path) in line]
    assert complaints == [], result.stderr


def test_nginx_accepts_the_configuration(tmp_path):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    openssl = shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=lab.example.org", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    text = (DEPLOY / "nginx" / "shardlab.conf").read_text("utf-8")
    for old, new in (
        ("/etc/letsencrypt/live/lab.example.org/fullchain.pem", certificate),
        ("/etc/letsencrypt/live/lab.example.org/privkey.pem", key),
        ("/var/log/nginx", tmp_path),
        ("listen 80;", "listen 127.0.0.1:18480;"),
        ("listen 443 ", "listen 127.0.0.1:18443 "),
        ("listen [::]:80;", ""),
    ):
        assert old in text
        text = text.replace(old, str(new))
    text = re.sub(r"listen \[::\]:443 .*", "", text)
    (tmp_path / "shardlab.conf").write_text(text)
    frame = f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}} http {{"
    (tmp_path / "nginx.conf").write_text(f"{frame} include {tmp_path}/shardlab.conf; }}")
    command = [nginx, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    # nginx creates the folders of its package also to test a configuration: only root may.
    if "mkdir()" in result.stderr:
        pytest.skip("nginx may not create its folders here")
    assert result.returncode == 0, result.stderr
    assert "successful" in result.stderr


def test_the_proxies_hide_the_metrics_and_do_not_buffer_events():
    nginx = (DEPLOY / "nginx" / "shardlab.conf").read_text("utf-8")
    caddy = (DEPLOY / "caddy" / "Caddyfile").read_text("utf-8")
    for path in ("/metrics", "/readyz"):
        assert f"GET {path}" in ACCESS
        assert path in nginx
        assert path in caddy
    assert "proxy_buffering off" in nginx
    assert "flush_interval -1" in caddy
    assert "X-Forwarded-For $remote_addr" in nginx  # not appended to what a client claims
    assert "proxy_set_header Host $host" in nginx


def known_series():
    """Return the names and labels of all metrics."""
    metrics = ServerMetrics()
    metrics.requests.add("GET", "/", "200")
    snapshot = Snapshot(
        queue=(),
        workers=(),
        checks=(),
        storage=StorageFigures(free_bytes=1, total_bytes=2, stored_bytes=1),
        n_streams=0,
        n_worker_restarts=0,
        refusals=None,
    )
    return {family.name for family in [*_counted(metrics), *_present(snapshot)]}


def test_the_alerts_and_the_page_name_metrics_that_exist():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "shardlab-alerts.yml").read_text("utf-8"))
    page = (DEPLOY / "monitoring.md").read_text("utf-8")
    alerts = rules["groups"][0]["rules"]
    assert len(alerts) == 11
    assert "has eleven alerts" in page
    suffixes = re.compile(r"_(total|bucket|sum|count)$")
    names = known_series()
    for text in (*(rule["expr"] for rule in alerts), page):
        for name in re.findall(r"\bshardlab_[a-z_]+", text):
            if name not in ("shardlab_restored", "shardlab_error"):  # a database, an outcome
                assert suffixes.sub("", name) in names, name
    for name in names - {"shardlab_info"}:
        assert name in page, f"docs/deploy/monitoring.md does not explain {name}"


def test_the_scrape_configuration_is_yaml():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert config["rule_files"] == ["shardlab-alerts.yml"]


def test_the_file_of_limits_shows_the_defaults():
    data = tomllib.loads((DEPLOY / "limits.toml").read_text("utf-8"))
    assert parse_limits(data, "limits.toml") == ServerLimits()
    assert set(data["person"]) == set(vars(ServerLimits().person))
    assert set(data["disk"]) == set(vars(ServerLimits().disk))


def commands_of(text):
    """Yield the command lines of shardlab in the indented blocks of a page."""
    block = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        match = re.search(r"(?:^|[\s/])shardlab ((?:serve|worker|people|backup|restore)\b.*)", line)
        if match:
            yield shlex.split(re.split(r"\s#|\s&&|\s\|", match[1])[0])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_page_exist(path):
    for words in commands_of(path.read_text("utf-8")):
        assert_options_exist(words)


def test_the_pages_have_commands_that_this_test_sees():
    names = {words[0] for page in PAGES for words in commands_of(page.read_text("utf-8"))}
    assert {"serve", "people", "backup", "restore", "worker"} <= names


def test_the_recipe_of_an_image_does_not_run_as_root():
    recipe = (DEPLOY / "container" / "Containerfile").read_text("utf-8")
    instructions = re.findall(r"^([A-Z]+) (.*)$", recipe, re.MULTILINE)
    assert [value for name, value in instructions if name == "USER"] == ["10001"]
    assert ("ENTRYPOINT", '["shardlab"]') in instructions
