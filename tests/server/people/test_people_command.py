"""`shardlab people`: accounts from the server's own command line."""

from __future__ import annotations

from click.testing import CliRunner
from people_server import PeopleServer

from shardlab.cli import main


def run_people(folder, *arguments):
    return CliRunner().invoke(main, ["people", *arguments, "--data", str(folder)])


def test_the_first_admin_signs_in_with_the_printed_password_and_chooses_their_own(tmp_path):
    result = run_people(tmp_path, "add", "Ada", "--role", "admin")
    assert result.exit_code == 0
    password = result.output.splitlines()[-1]
    server = PeopleServer(tmp_path)
    browser = server.browser()
    assert browser.sign_in("ada", password).headers["location"] == "/"
    # Until then everything else leads to the page of the account.
    assert browser.get("/admin").headers["location"] == "/account"
    assert browser.get("/api/v1/account").status_code == 401
    fields = {"current_password": password, "password": "violet otter umbrella"}
    assert browser.post("/account/password", fields).status_code == 303
    assert browser.get("/admin").status_code == 200
    server.close()


def test_roles_and_passwords_are_changed_by_name(tmp_path):
    run_people(tmp_path, "add", "Ada", "--role", "admin")
    run_people(tmp_path, "add", "Bob")
    assert run_people(tmp_path, "set-role", "bob", "teacher").exit_code == 0
    assert run_people(tmp_path, "list").output.split() == ["admin", "Ada", "teacher", "Bob"]
    assert len(run_people(tmp_path, "reset-password", "Bob").output.strip()) == 24


def test_what_is_refused_is_an_error_with_a_fix(tmp_path):
    run_people(tmp_path, "add", "Ada", "--role", "admin")
    for arguments, message in (
        (("add", "ADA"), "This name is taken."),
        (("add", "<b>"), "A name has letters"),
        (("set-role", "Ada", "learner"), "The last admin stays"),
        (("reset-password", "Eve"), "There is no account"),
    ):
        result = run_people(tmp_path, *arguments)
        assert result.exit_code == 2
        assert "[server.account]" in result.output
        assert message in result.output
