"""The operators' page in a real browser, with a federation running; skipped where there is no Chromium."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from consilience.relay.operators import add_operator, remove_operator
from consilience.relay.store import Store
from tests.local_relay import MEAN, MOVING, START, change, create_federation, logits, moved, upload_over, weighs
from tests.relay_tools import serve, serving

CHROMIUM = shutil.which("chromium")
BOTH = {**MEAN, **MOVING}
UNKNOWN = "co1_9_" + "a" * 43
SLOW = 60_000  # milliseconds; a busy machine may need them


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=CHROMIUM, args=[*quiet, "--disable-sync"])
        yield opened
        opened.close()


class Page:
    """The page in a tab of its own, and everything that went wrong in it."""

    def __init__(self, browser: Any, url: str, scheme: str = "light", width: int = 1000) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.view, self.wrong = self.context.new_page(), list[str]()
        self.view.set_default_timeout(SLOW)
        self.view.on("console", self._on_console)
        self.view.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.view.on("request", lambda sent: None if sent.url.startswith(url) else self.wrong.append(sent.url))
        self.view.goto(f"{url}/operator")

    def _on_console(self, said: Any) -> None:
        if "Failed to load resource" not in said.text:  # a refused token, or a relay that is gone
            self.wrong.append(said.text)

    def sign_in(self, token: str) -> None:
        self.view.get_by_label("Operator token").fill(token)
        self.view.get_by_role("button", name="Sign in").click()

    def wait_for(self, place: str, text: str) -> None:
        """Wait until an element has this text in it."""
        self.view.locator(place, has_text=text).first.wait_for()

    def text(self, place: str) -> str:
        return str(self.view.locator(place).inner_text())

    def rows(self) -> list[str]:
        return [str(name) for name in self.view.locator("#members tbody th").all_inner_texts()]

    def width(self) -> int:
        return int(self.view.evaluate("document.documentElement.scrollWidth"))


@contextlib.contextmanager
def opened(browser: Any, url: str, scheme: str = "light", width: int = 1000) -> Iterator[Page]:
    page = Page(browser, url, scheme, width)
    try:
        yield page
    finally:
        page.context.close()


def test_page_follows_a_running_federation(browser: Any, tmp_path: Path) -> None:
    stored = create_federation(tmp_path, BOTH, START, members=3)
    token = str(add_operator(stored.store, "anna"))
    with serving(stored.store) as relay, opened(browser, relay.url) as page:
        for wrong, said in (
            ("", "Enter your operator token"),
            (stored.tokens[0], "This is a member's token"),
            ("co1_1_short", "This is not an operator token"),
            (UNKNOWN, "The relay does not know this token"),
        ):
            page.sign_in(wrong)
            page.wait_for("#sign-in-error", said)
        page.sign_in(token)
        page.wait_for("#connection-text", "Live")
        page.wait_for("#federations", "Not started")
        for member in (0, 1):
            upload_over(relay.url, stored.tokens[member], 0, moved(0), MOVING, change(member))
        page.wait_for("#federations", "2 of 3 uploaded; waits up to 1 min for member-2")
        upload_over(relay.url, stored.tokens[2], 4, weighs(1), MEAN, logits(1, 1))
        upload_over(relay.url, stored.tokens[2], 5, moved(0), MOVING, change(2))
        page.wait_for("#federations", "weights at version 1")
        page.wait_for("#tiles", "3 of 3")
        row = page.view.locator("#members tbody tr", has_text="member-2")
        row.locator("td[data-column=round]", has_text="5").wait_for()
        row.locator(".badge.active").wait_for()
        page.view.locator("#chart rect").first.wait_for()
        page.wait_for("#chart-text", "4 uploads")
        hostile = "<img src=x onerror=alert(1)>"
        head = {"Authorization": f"Bearer {stored.tokens[0]}"}
        assert httpx.get(f"{relay.url}/v1/answers", params={hostile: "1"}, headers=head).status_code == 400
        page.wait_for("#refusals", hostile)  # as text
        page.wait_for("#codes", "malformed-query")
        assert page.view.locator("#refusals img").count() == 0
        assert page.width() <= 1000
        page.view.get_by_role("button", name="Sign out").click()
        page.wait_for("#connection-text", "Signed out")
        assert page.view.evaluate("sessionStorage.length") == 0
        assert "member-2" not in page.view.content()
        page.view.reload()
        page.view.get_by_label("Operator token").wait_for()
        assert page.wrong == []


def test_page_connects_again_and_ends_with_the_token(browser: Any, tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    token = str(add_operator(stored.store, "anna"))
    relay = serve(stored.store)
    try:
        with opened(browser, relay.url) as page:
            page.sign_in(token)
            page.wait_for("#connection-text", "Live")
            port = relay.port
            relay.kill()
            page.wait_for("#connection-text", "Connection lost, trying again")
            assert page.view.locator("#status.stale").count() == 1
            assert page.rows() == ["member-0", "member-1"]  # what is known stays
            relay = serve(stored.store, port)
            page.wait_for("#connection-text", "Live")
            upload_over(relay.url, stored.tokens[0], 7, weighs(1), MEAN, logits(1, 1))
            page.wait_for("#members td[data-column=round]", "7")
            page.view.reload()  # the tab remembers the token
            page.wait_for("#connection-text", "Live")
            remove_operator(stored.store, "anna")
            page.wait_for("#sign-in-error", "The relay does not know this token")
            assert page.view.evaluate("sessionStorage.length") == 0
            assert page.wrong == []
    finally:
        relay.kill()


def test_a_thousand_members_are_searched_sorted_and_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN, members=0)
    for number in range(2, 21):
        create_federation(tmp_path, MEAN, members=0, name=f"letters-{number}")
    with contextlib.closing(Store(stored.store)) as store, store.writing():
        for number in range(1000):
            store.members.add(1, f"ward-{number}")
        store.members.add(2, "school")
    token = str(add_operator(stored.store, "anna"))
    with serving(stored.store) as relay:
        with opened(browser, relay.url) as page:
            page.sign_in(token)
            page.wait_for("#members-count", "1,001 members; the first 25 are shown")
            assert page.rows()[:3] == ["ward-0", "ward-1", "ward-2"]
            page.view.get_by_role("button", name="Show 100 more").click()
            page.wait_for("#members-count", "the first 125 are shown")
            page.view.get_by_role("button", name="Member", exact=True).click()
            page.view.locator("#members th[aria-sort=ascending][data-column=name]").wait_for()
            page.view.locator("#members tbody th", has_text="school").wait_for()
            page.view.get_by_role("searchbox", name="Search").fill("ward-77")
            page.wait_for("#members-count", "11 of 1,001 members")
            page.view.get_by_role("button", name="Show the members of letters-2", exact=True).click()
            page.view.locator("#members tbody th", has_text="school").wait_for()
            assert page.rows() == ["school"] and page.view.locator("#members-count", has_text="1 of 1,001").count() == 1
            assert page.view.locator("#federations > li").count() == 20
            assert page.wrong == []
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 25, 29)")):
            with opened(browser, relay.url, scheme, width=390) as page:
                page.sign_in(token)
                page.wait_for("#members-count", "1,001 members")
                assert page.width() <= 390
                assert page.view.evaluate("getComputedStyle(document.body).backgroundColor") == paper
                page.view.get_by_label("Sort by").select_option("name")
                page.view.locator("#members tbody th", has_text="school").wait_for()
                assert page.wrong == []
