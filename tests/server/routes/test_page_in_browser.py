"""The page in a headless Chromium: filtering, a device, live updates, phone width, accessibility."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from server.state.log_store import check_lines

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.embedded
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAGES = ("devices", "devices/cam-1", "bundles", "bundles/tiny", "rollouts", "jobs")
VIEWS = ("/", *(f"/page/{name}" for name in PAGES))


@pytest.fixture(scope="module")
def browser():
    """A Chromium of this machine."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("needs a Chromium: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def fleet(serve, tiny, log_line, ndjson):
    """A server with sixty devices, of which every third is over its budget."""
    server = serve(tiny.folder)

    def send(name, *lines):
        server.services.logs.add(name, check_lines(ndjson(*lines), max_line_bytes=10_000))

    for number in range(60):
        measured_ms = 9.0 if number % 3 == 0 else 1.0
        name = f"{'cam' if number % 2 else 'kiosk'}-{number}"
        send(name, log_line(1), log_line(2, "adapted", measured_ms=measured_ms))
    server.send = send
    return server


@pytest.fixture
def opened(browser, fleet):
    """Opens a view; errors and refused loads in the page fail the test."""
    context = browser.new_context()
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def open_view(path, **viewport):
        if viewport:
            page.set_viewport_size(viewport)
        page.goto(fleet.url + path)
        return page

    yield open_view
    context.close()
    assert said == []


def test_from_the_overview_by_a_filter_to_a_device(opened):
    page = opened("/")
    page.get_by_role("link", name="20", exact=True).first.click()  # over budget
    page.wait_for_url("**/page/devices?over=1**")
    assert page.locator("#count").inner_text() == "20 devices"
    page.keyboard.press("/")
    page.keyboard.type("cam")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=cam**")
    assert page.locator("#count").inner_text() == "10 devices"
    page.get_by_label("Over budget").uncheck()
    page.wait_for_url(lambda url: "over=" not in url)
    assert page.locator("#count").inner_text() == "30 devices"
    page.get_by_role("link", name="cam-9", exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == "cam-9"
    assert page.locator("svg.chart circle").count() == 1


def test_a_view_follows_the_fleet_without_reloading(opened, fleet, log_line):
    page = opened("/page/devices?search=new")
    page.evaluate("window.loadedOnce = true")
    page.evaluate("main.dataset.refreshS = 0.1; wait()")
    assert page.get_by_text("No device is like this.").is_visible()
    fleet.send("new-1", log_line(5))
    page.get_by_role("link", name="new-1").wait_for()
    assert page.locator("#count").inner_text() == "1 device"
    assert page.evaluate("window.loadedOnce")


def test_an_update_leaves_focus_and_opened_figures_alone(opened, fleet, log_line):
    page = opened("/")
    page.evaluate("main.dataset.refreshS = 0.1; wait()")
    page.locator("summary").first.click()
    page.locator("#versions a[href*=bundle]").first.focus()
    fleet.send("new-1", log_line(5))
    page.locator("#numbers").get_by_text("61", exact=True).first.wait_for()
    assert page.locator("details").first.get_attribute("open") is not None
    assert "bundle=" in page.evaluate("document.activeElement.getAttribute('href')")


def test_it_says_when_the_server_is_away(opened, fleet):
    page = opened("/page/jobs")
    page.evaluate("window.fetch = () => Promise.reject(new Error('away')); main.dataset.refreshS = 0.1; wait()")
    page.get_by_text("not live: the server is away").wait_for()


@pytest.mark.parametrize("path", VIEWS)
def test_views_fit_a_phone(opened, path):
    page = opened(path, width=375, height=700)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, scheme):
    axe = os.environ.get("AXE_CORE")
    if axe is None:
        pytest.skip("needs axe-core: set AXE_CORE to its axe.min.js")
    for path in VIEWS:
        page = opened(path)
        page.emulate_media(color_scheme=scheme)
        page.evaluate(Path(axe).read_text())
        found = page.evaluate("axe.run().then(found => found.violations.map(one => [one.impact, one.id]))")
        assert [one for one in found if one[0] in ("serious", "critical")] == [], path
