"""`shardlab serve --accounts` in a process of its own, with people and classes made for a test.

The test writes into the database of the running server, as `shardlab people` does: SQLite in WAL
mode serves several processes. To create an account here is fast, because its password is hashed
with the least work; the server reads the parameters from the hash.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import Page

from browser.conftest import running_server
from shardlab.catalogue.tracks import load_catalogue
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.server.database.engine import Database, open_database
from shardlab.server.people.passwords import PasswordHashing
from shardlab.server.people.services import open_people
from shardlab.server.person import Person
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.settings import ServerSettings

SECRET = "mQ0s9vYk3-tZrW8xLcP2bHdN5gJfUeAq7TiRoKwX"
PASSWORD = "violet otter umbrella"
# Long, right to left, composed of letters and marks, without a space, short.
NAMES = (
    *("Ada Lovelace", "Bo", "Maximiliana-Alexandrina von Hohenzollern", "مريم العلي"),
    *("דוד כהן", "王小明", "Łukasz Żółć", "देवकी नन्दन", "Wolfeschlegelsteinhausenbergerdorff 1"),
    *("O'Brien, Siobhan".replace(",", ""), "Nguyễn Thị Minh Khai", "J. R. R. Tolkien"),
)
LONG_TITLE = "Distributed training with JAX 🚀, autumn term, group of Tuesday afternoon, room 4"


class AccountsServer:
    """A running server, and its database."""

    def __init__(self, url: str, folder: Path, database: Database) -> None:
        self.url = url
        self.folder = folder
        self.database = database
        settings = ServerSettings(data_folder=folder, mode="accounts", secret=SECRET)
        hashing = PasswordHashing(time_cost=1, memory_kib=64)
        self.people = open_people(settings, database, hashing)

    def add_person(self, name: str, role: str = "learner") -> Person:
        return self.people.accounts.create(name, PASSWORD, role=role)

    def add_class(self, teacher: Person, title: str, members: Sequence[Person] = ()) -> int:
        class_id = self.people.classes.create(teacher, title)
        token = self.people.classes.join_token(class_id)
        assert token is not None
        for member in members:
            self.people.classes.join(token, member)
        return class_id

    def add_submission(self, person: Person, problem: str, code: str, source: str = "") -> int:
        """Store a submission with its judgement, as a worker does; return its number."""
        store = PersonPracticeStore(self.database, self.folder, person.id)
        text = source or f"# of {person.name}\n"
        number = store.add_submission(problem, 1, text.encode(), kind="submit", seed=5)
        what = "" if code == "AC" else "The values on devices 1, 2 and 3 are off by 2."
        verdict = Verdict(code=code, what=what)
        case = CaseResult(name="data=4", part=1, mesh="data=4", seed=7, verdicts=(verdict,))
        judgement = Judgement(
            problem=problem, content_version=1, level="A", seed=5, kind="submit", cases=(case,)
        )
        store.save_judgement(number, judgement)
        return number

    def add_full_class(self, teacher: Person, n_members: int = 60) -> int:
        """Create a class in which everybody has come a different way through all 37 problems."""
        generator = random.Random(12)
        names = [*NAMES, *(f"Learner Number {n}" for n in range(len(NAMES), n_members))]
        members = [self.add_person(name) for name in names[:n_members]]
        problems = list(load_catalogue().problems)
        for member in members[1:]:  # the first one has submitted nothing
            reached = generator.randrange(len(problems) + 1)
            for problem in problems[:reached]:
                chance = generator.random()
                if chance < 0.8:
                    self.add_submission(member, problem, "AC" if chance < 0.7 else "WA")
        return self.add_class(teacher, "Everybody", members)


@contextlib.contextmanager
def running_accounts_server(folder: Path) -> Iterator[AccountsServer]:
    """Start the server with an empty database, and end it."""
    secret_file = folder / "secret"
    secret_file.write_text(SECRET, "utf-8")
    data = folder / "data"
    open_database(data).close()  # migrated before the server reads it
    options = ("--accounts", "--secret-file", str(secret_file), "--data", str(data))
    with running_server(data, *options) as url:
        database = open_database(data)
        try:
            yield AccountsServer(url, data, database)
        finally:
            database.close()


def sign_in(page: Page, url: str, name: str, next_path: str = "/") -> None:
    """Sign in as a person does."""
    page.goto(f"{url}/sign-in?next={next_path}")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.locator("main").get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(url + next_path)
