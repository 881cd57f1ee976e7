"""Browser tests: a real server on loopback and a real Chromium.

`chromium_path()` finds the browser; without one the tests are skipped and `make test` says so. With
CI set they fail instead, because CI installs the browser.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shardlab.server.database.engine import open_database
from shardlab.server.people.accounts import Accounts
from shardlab.server.people.passwords import PasswordHashing
from shardlab.server.people.rate_limits import RateLimits
from web.node_packages import require_node_package

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
# Without these Chromium looks up hosts of its own at start.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PASSWORD = "violet otter umbrella"  # of the people that a test adds
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 390, "height": 844}
# Every pair of a screen and a color scheme; `make test` has both screens and both schemes.
SCREENS = [
    pytest.param(WIDE, "light", id="wide-light"),
    pytest.param(NARROW, "dark", id="narrow-dark"),
    pytest.param(WIDE, "dark", id="wide-dark", marks=pytest.mark.long),
    pytest.param(NARROW, "light", id="narrow-light", marks=pytest.mark.long),
]
# Of pages whose styles hardly depend on the width, `make test` has the narrow one.
WIDTHS = [
    pytest.param(NARROW, id="narrow"),
    pytest.param(WIDE, id="wide", marks=pytest.mark.long),
]
LIMIT_MS = 60_000  # ends a hang; Playwright's own 5 s would fail on a busy machine
SHOTS = os.environ.get("SHARDLAB_SCREENSHOTS")  # a folder; tests write their screenshots there

expect.set_options(timeout=LIMIT_MS)


def chromium_path() -> str | None:
    """Return the path of Chromium or Chrome; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("SHARDLAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        reason = "Chromium is not installed (apt-get install chromium): no browser test ran"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start `shardlab serve` with an empty data folder, and return its address."""
    with running_server(tmp_path_factory.mktemp("data")) as url:
        yield url


@dataclass(frozen=True)
class AccountsServer:
    """A running `shardlab serve --accounts`."""

    url: str
    data_folder: Path

    def add_person(self, name: str, role: str = "learner") -> str:
        """Create an account in the server's database, and return its password."""
        with self._accounts() as accounts:
            accounts.create(name, PASSWORD, role=role)
        return PASSWORD

    def reset_password(self, name: str) -> str:
        """Return a password that must be changed after the sign-in, as an admin sets it."""
        with self._accounts() as accounts:
            return accounts.reset_password(accounts.find(name).id)

    @contextlib.contextmanager
    def _accounts(self) -> Iterator[Accounts]:
        database = open_database(self.data_folder)
        try:
            yield Accounts(database, RateLimits(database), PasswordHashing())
        finally:
            database.close()


@pytest.fixture(scope="session")
def accounts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    """Start a server on which people sign in; submissions are confined at level A."""
    folder = tmp_path_factory.mktemp("accounts")
    secret_file = folder / "secret"
    secret_file.write_text(secrets.token_urlsafe(48))
    data_folder = folder / "data"
    options = ("--accounts", "--secret-file", str(secret_file), "--data", str(data_folder))
    with running_server(data_folder, *options) as url:
        # A name: passkeys exist for names, and 127.0.0.1 is none.
        yield AccountsServer(url.replace("127.0.0.1", "localhost"), data_folder)


@pytest.fixture(scope="session")
def accounts_url(accounts_server: AccountsServer) -> str:
    """Return the address of the server with accounts: `open_visit(url=accounts_url)`."""
    return accounts_server.url


@contextlib.contextmanager
def running_server(data_home: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", "0", *options]
    environment = {**os.environ, "SHARDLAB_DATA": str(data_home), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://" in line, f"the server did not start: {line}"
            yield "http://" + line.split("http://")[1].split("/")[0]
        finally:
            process.terminate()
            process.wait(60)


class Visit:
    """A page in Chromium that notices requests to other hosts and errors in the console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.foreign_requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._note_request)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note_console)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def check(self) -> None:
        """Fail if the page reached another host, or an error was logged."""
        assert self.foreign_requests == []
        assert self.errors == []

    def find_accessibility_faults(self, rules: list[str] | None = None) -> list[str]:
        """Return the serious and critical faults that axe-core finds, by all rules or by some."""
        require_node_package("axe-core")
        # Evaluated over the debugging protocol: the page's Content-Security-Policy stays as it is.
        self.page.evaluate(AXE.read_text("utf-8"))
        options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
        result = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{fault['id']}: {node['html'][:200]} ({node.get('failureSummary', '')[:300]})"
            for fault in result["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    def take_screenshot(self, name: str, *, full_page: bool = False) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{SHOTS}/{name}.png", full_page=full_page)

    def _note_request(self, request) -> None:
        host = urlsplit(request.url).hostname
        if host not in (None, "127.0.0.1", "localhost"):
            self.foreign_requests.append(request.url)

    def _note_console(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location.get('url', '')}")


@pytest.fixture
def open_visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator:
    """Return a function that opens a browser window: wide or narrow, light or dark.

    Without `url` it is of the local server, which starts at its first use.
    """
    contexts = []

    def open_window(
        viewport=WIDE, scheme="light", scripts=True, motion="no-preference", url=None
    ) -> Visit:
        url = url or request.getfixturevalue("lab_url")
        context = browser.new_context(
            viewport=viewport,
            color_scheme=scheme,
            java_script_enabled=scripts,
            reduced_motion=motion,
        )
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        return Visit(context.new_page(), url)

    yield open_window
    for context in contexts:
        context.close()
