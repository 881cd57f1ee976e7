"""Sign up, sign in, sign out, account and passkeys, in Chromium."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import PASSWORD, SCREENS, WIDE

OTHER_PASSWORD = "another otter umbrella"
_NUMBERS = itertools.count(1)


def new_name() -> str:
    """Return a name that no other test has; the server is shared."""
    return f"Ada {next(_NUMBERS)}"


def sign_up(page: Page, url: str, name: str) -> None:
    page.goto(f"{url}/sign-up?next=/account")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()


def sign_out(page: Page) -> None:
    page.get_by_role("banner").get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()


class VirtualAuthenticator:
    """Chromium's authenticator for tests: it answers at once, as a person with a fingerprint."""

    def __init__(self, page: Page) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        self.id = self.send("addVirtualAuthenticator", options=options)["authenticatorId"]

    def send(self, command: str, **fields):
        return self.session.send(f"WebAuthn.{command}", fields)

    def credentials(self) -> list[dict]:
        return self.send("getCredentials", authenticatorId=self.id)["credentials"]

    def set_counter(self, counter: int) -> None:
        """Store the same credential with another counter, as a copy of the device would have."""
        (credential,) = self.credentials()
        self.send("clearCredentials", authenticatorId=self.id)
        credential = {**credential, "signCount": counter}
        self.send("addCredential", authenticatorId=self.id, credential=credential)


def add_passkey(page: Page, label: str = "laptop") -> None:
    page.get_by_label("Name of the passkey").fill(label)
    page.get_by_label("Your password, to confirm").fill(PASSWORD)
    page.get_by_role("button", name="Add a passkey").click()
    expect(page.get_by_role("status")).to_contain_text("The passkey is added")


def press_until(page: Page, key: str, name: str) -> None:
    """Press a key until the focused element has this accessible text."""
    script = "({ activeElement: e }) => e === document.body ? '' : e.ariaLabel ?? e.innerText"
    for _ in range(60):
        if name in page.evaluate(f"({script})(document)"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{name} cannot be reached with {key}")


# ---------------------------------------------------------------------------------- accounts


def test_an_account_from_the_sign_up_to_its_deletion(open_visit, accounts_url):
    visit, name = open_visit(url=accounts_url), new_name()
    page = visit.open("/sign-in")
    page.get_by_role("link", name="Sign up").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    expect(page).to_have_url(re.compile("/practice$"))
    page.get_by_role("link", name=f"Account: {name}").click()
    page.get_by_label("Current password").fill(PASSWORD)
    page.get_by_label("New password").fill(OTHER_PASSWORD)
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_role("status")).to_contain_text("The password is changed.")
    page.get_by_label("What is it for?").fill("nightly check")
    page.get_by_role("button", name="Create a token").click()
    expect(page.get_by_role("status")).to_contain_text("shardlab_")
    page.get_by_role("button", name="Revoke nightly check").click()
    expect(page.get_by_role("status")).to_contain_text("The token is revoked.")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "shardlab-account.zip"
    sign_out(page)
    page.get_by_role("link", name="Sign in").click()
    sign_in(page, name.upper(), OTHER_PASSWORD)
    page.goto(f"{accounts_url}/account")
    page.get_by_role("link", name="Delete…").click()
    page.get_by_label("Your password, to confirm").fill(OTHER_PASSWORD)
    page.get_by_role("button", name="Delete everything").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    visit.check()
    page.goto(f"{accounts_url}/sign-in")
    sign_in(page, name, OTHER_PASSWORD)
    expect(page.get_by_role("alert").first).to_have_text("The name or the password is wrong.")
    expect(page.get_by_label("Password")).to_be_focused()


def test_a_session_is_ended_from_another_browser(open_visit, accounts_url):
    first, second = open_visit(url=accounts_url), open_visit(url=accounts_url)
    name = new_name()
    sign_up(first.page, accounts_url, name)
    sign_in(second.open("/sign-in?next=/account"), name)
    second.page.get_by_role("button", name="Sign out all others").click()
    expect(second.page.get_by_role("status")).to_have_text("The session has ended.")
    first.page.reload()
    expect(first.page).to_have_url(re.compile("/sign-in"))
    first.check()
    second.check()


def test_a_password_that_an_admin_set_is_changed_first(open_visit, accounts_server):
    visit, name = open_visit(url=accounts_server.url), new_name()
    accounts_server.add_person(name)
    password = accounts_server.reset_password(name)
    page = visit.open("/sign-in?next=/classes")
    sign_in(page, name, password)
    expect(page).to_have_url(f"{accounts_server.url}/account")
    expect(page.get_by_role("alert").first).to_contain_text("Choose your own")
    expect(page.get_by_role("heading", level=2)).to_have_text(
        ["Password"]
    )  # nothing else works yet
    visit.take_screenshot("account-must-change")
    page.get_by_label("Current password").fill(password)
    page.get_by_label("New password").fill(PASSWORD)
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_role("heading", name="Passkeys")).to_be_visible()
    page.goto(f"{accounts_server.url}/classes")
    expect(page).to_have_url(f"{accounts_server.url}/classes")
    visit.check()


def test_the_account_is_used_with_the_keyboard_alone(open_visit, accounts_url):
    visit, name = open_visit(url=accounts_url), new_name()
    page = visit.open("/sign-up?next=/account")
    VirtualAuthenticator(page)
    page.keyboard.type(name)  # the first field has the focus
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.get_by_label("Name of the passkey").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("key at the keyboard")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    press_until(page, "Tab", "Add a passkey")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The passkey is added")
    page.keyboard.press("Tab")
    press_until(page, "Tab", "Sign out")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    press_until(page, "Tab", "Sign in")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name")).to_be_focused()
    press_until(page, "Tab", "Sign in with a passkey")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{accounts_url}/practice")
    press_until(page, "Tab", name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    press_until(page, "Tab", "Remove key at the keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The passkey is removed")
    visit.check()


def test_accounts_work_without_scripts(open_visit, accounts_url):
    visit, name = open_visit(url=accounts_url, scripts=False), new_name()
    page = visit.page
    sign_up(page, accounts_url, name)
    expect(page.get_by_text("Adding a passkey needs JavaScript.")).to_be_visible()
    expect(page.get_by_role("button", name="Add a passkey")).to_be_hidden()
    page.get_by_label("Current password").fill(PASSWORD)
    page.get_by_label("New password").fill(OTHER_PASSWORD)
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_role("status")).to_contain_text("The password is changed.")
    sign_out(page)
    page.get_by_role("link", name="Sign in").click()
    expect(page.get_by_text("Signing in with a passkey needs JavaScript.")).to_be_visible()
    expect(page.get_by_role("button", name="Sign in with a passkey")).to_be_hidden()
    sign_in(page, name, OTHER_PASSWORD)
    expect(page.get_by_role("link", name=f"Account: {name}")).to_be_visible()
    visit.check()


# ---------------------------------------------------------------------------------- passkeys


def test_a_passkey_is_added_signs_in_and_is_removed(open_visit, accounts_url):
    visit, name = open_visit(url=accounts_url), new_name()
    page = visit.page
    authenticator = VirtualAuthenticator(page)
    sign_up(page, accounts_url, name)
    add_passkey(page, "laptop")
    row = page.get_by_role("listitem").filter(has_text="laptop")
    expect(row).to_contain_text("last used never")
    (credential,) = authenticator.credentials()
    assert credential["isResidentCredential"]
    assert credential["rpId"] == "localhost"

    sign_out(page)
    visit.open("/sign-in?next=/account")
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(row).not_to_contain_text("never")
    page.get_by_role("button", name="Remove laptop").click()
    expect(page.get_by_role("status")).to_contain_text("The passkey is removed")
    expect(row).to_have_count(0)
    sign_out(page)
    visit.check()

    visit.open("/sign-in?next=/account")
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_text("This passkey cannot sign in here.")).to_be_visible()
    sign_in(page, name)
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert visit.foreign_requests == []


def test_a_passkey_of_somebody_who_is_not_verified_is_not_used(open_visit, accounts_url):
    visit = open_visit(url=accounts_url)
    page = visit.page
    authenticator = VirtualAuthenticator(page)
    sign_up(page, accounts_url, new_name())
    add_passkey(page)
    sign_out(page)
    authenticator.send("setUserVerified", authenticatorId=authenticator.id, isUserVerified=False)
    visit.open("/sign-in")
    button = page.get_by_role("button", name="Sign in with a passkey")
    button.click()
    expect(page.get_by_text("No passkey was used")).to_be_visible()
    expect(button).to_be_focused()
    visit.check()


def test_a_copy_of_a_passkey_is_refused_and_the_person_is_warned(open_visit, accounts_url):
    visit, name = open_visit(url=accounts_url), new_name()
    page = visit.page
    authenticator = VirtualAuthenticator(page)
    sign_up(page, accounts_url, name)
    add_passkey(page)
    (credential,) = authenticator.credentials()
    assert credential["signCount"] > 0  # this authenticator counts
    sign_out(page)
    authenticator.set_counter(0)
    visit.open("/sign-in?next=/account")
    page.get_by_role("button", name="Sign in with a passkey").click()
    expect(page.get_by_text("This passkey cannot sign in here.")).to_be_visible()
    sign_in(page, name)
    expect(page.get_by_text("There may be a copy of it.")).to_be_visible()
    visit.take_screenshot("account-copied-passkey")


def test_a_wrong_password_adds_no_passkey(open_visit, accounts_url):
    visit = open_visit(url=accounts_url)
    page = visit.page
    authenticator = VirtualAuthenticator(page)
    sign_up(page, accounts_url, new_name())
    page.get_by_label("Your password, to confirm").fill("a wrong password")
    page.get_by_role("button", name="Add a passkey").click()
    expect(page.get_by_text("The current password is wrong.")).to_be_visible()
    assert authenticator.credentials() == []
    add_passkey(page)
    page.get_by_label("Your password, to confirm").fill(PASSWORD)
    page.get_by_role("button", name="Add a passkey").click()
    expect(page.get_by_text("This device already has a passkey of your account.")).to_be_visible()


def test_under_an_address_the_page_says_where_passkeys_work(open_visit, accounts_url):
    url = accounts_url.replace("localhost", "127.0.0.1")
    visit = open_visit(url=url)
    page = visit.open("/sign-in")
    expect(page.get_by_text(f"Open {accounts_url} instead.")).to_be_visible()
    expect(page.get_by_role("button", name="Sign in with a passkey")).to_have_count(0)
    visit.check()


# ------------------------------------------------------------------------------------- looks


@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
def test_the_pages_fit_the_screen_and_have_no_serious_fault(
    open_visit, accounts_url, viewport, scheme
):
    visit, name = open_visit(url=accounts_url, viewport=viewport, scheme=scheme), new_name()
    page = visit.page
    suffix = f"{'wide' if viewport == WIDE else 'narrow'}-{scheme}"

    def look(what: str) -> None:
        page.wait_for_load_state("networkidle")
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{what} scrolls sideways"
        assert visit.find_accessibility_faults() == []
        visit.take_screenshot(f"{what}-{suffix}", full_page=True)

    VirtualAuthenticator(page)
    visit.open("/sign-in")
    look("sign-in")
    visit.open("/sign-up")
    look("sign-up")
    sign_up(page, accounts_url, name)
    look("account-new")
    add_passkey(page, "laptop with a fingerprint reader")
    page.get_by_label("What is it for?").fill("nightly check")
    page.get_by_role("button", name="Create a token").click()
    look("account-token")
    visit.open("/account")
    look("account")
    visit.open("/account/delete")
    look("account-delete")
    visit.check()
    sign_out(page)
    visit.open("/sign-in")
    sign_in(page, name, "a wrong password")
    look("sign-in-wrong")
    visit.open("/sign-up")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    look("sign-up-wrong")
