from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import re
from html.parser import HTMLParser

import msgspec
import pytest

from device_sdk.logs.adaptation_log import PlanChosen
from server.access.scopes import Scope
from server.state.log_store import CheckedLine, check_lines

pytestmark = pytest.mark.replicas(3)
VIEWS = ("/", "/page/devices", "/page/bundles", "/page/rollouts", "/page/jobs")


@pytest.fixture
def running(serve, tiny, tmp_path):
    """A server of a good and a broken bundle."""
    tiny.copy_to(tmp_path / "bundles" / "good")
    (tiny.copy_to(tmp_path / "bundles" / "bad<b>") / "manifest.json").write_text("{")
    return serve(tmp_path / "bundles")


@pytest.fixture
def send(log_line, ndjson):
    """Sends lines of a device: ``send(server, device, *lines)``."""

    def to(server, device, *lines):
        headers = {"Pathweave-Device": device}
        reply = server.ask("/v1/logs", method="POST", body=ndjson(*lines), headers=headers)
        assert reply.status == 200

    return to


def text(server, path="/", **headers):
    reply = server.ask(path, headers=headers)
    assert reply.status == 200, reply.body
    return reply.body.decode()


def rows(page):
    """The cells of each row of the tables, by its first cell."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL):
        cells = [
            html.unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)
        ]
        found.setdefault(cells[0], cells)
    return found


class Tags(HTMLParser):
    """The elements of a page, as a browser finds them, with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def chosen(**changes):
    fields = {
        "plan_kind": "exits + ask early",
        "subnet": "o0 m1-4 o4",
        "optimise": "latency_ms",
        "limits": {"accuracy": 0.9, "latency_ms": 4.0},
        "considered": 100,
        "samples": 300,
        "accuracy": 0.91,
        "latency_ms": 2.0,
        "energy_mj": None,
        "bytes_sent": 400.0,
        "share_early": 0.5,
        "share_asked": 0.2,
        "share_abstained": 0.0,
        "notes": (),
        "share_asked_early": 0.15,
        "saved": {"latency_ms": 0.4},
    }
    return msgspec.to_builtins(PlanChosen(**{**fields, **changes}))


def test_an_empty_server_says_what_to_do(serve, tmp_path):
    (tmp_path / "empty").mkdir()
    server = serve(tmp_path / "empty")
    page = server.ask("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"--upload" in page.body
    assert "--upload" in text(server, "/page/devices")
    assert "No bundle yet" in text(server, "/page/bundles")
    assert "POST /v1/jobs" in text(server, "/page/jobs")


@pytest.mark.embedded
def test_bundles_and_why_one_is_not_served(running, tiny_bundle):
    page = text(running, "/page/bundles")
    assert rows(page)["tiny"][:3] == ["tiny", "1", "yes"]
    assert tiny_bundle.manifest.name in page
    assert "bad&lt;b&gt;" in page
    assert "bad<b>" not in page
    assert "Not served" in page


def test_a_bundle_with_its_exits_its_versions_and_its_devices(running, send, log_line):
    digest = running.services.bundles.find("tiny").bundle.digest
    send(running, "a", {**log_line(1), "bundle": digest})
    page = text(running, "/page/bundles/tiny?version=1")
    assert rows(page)["x1-pooled"][1] == "1"
    assert rows(page)["tiny"][8] == "1"
    assert digest in page
    assert f'href="/page/devices?bundle={digest}"' in page
    assert running.ask("/page/bundles/none").status == 404


def test_devices_with_their_plan_and_whether_it_keeps_the_budget(running, send, log_line):
    digest = {"bundle": running.services.bundles.find("tiny").bundle.digest}
    send(running, "quick-one", {**log_line(1), **digest}, {**log_line(2, "adapted"), **digest})
    send(running, "slow-one", log_line(3, "adapted", measured_ms=7.25, subnet="o0 o1 m2-4 o4"))
    page = text(running, "/page/devices")
    found = rows(page)
    assert found["quick-one"][2:] == ["tiny 1", "subnet", "1.5", "2.0", "75%", "0%", "–", "–"]
    assert found["slow-one"][2:] == ["000000000000…", "subnet", "7.2", "2.0", "362%", "0%", "–", "–"]
    assert '<td class="number bad">7.2</td>' in page
    assert 'title="o0 o1 m2-4 o4"' in page
    assert "2 devices" in page


def test_the_overview_counts_devices_by_version_plan_budget_and_what_they_ask(running, send, log_line):
    send(running, "a", log_line(1, "adapted"))
    send(running, "b", log_line(1, "adapted", measured_ms=9.0))
    send(running, "c", {**log_line(1), "event": chosen()})
    overview = running.ask("/?format=json").json()
    assert [(row["devices"], row["over_budget"]) for row in overview["versions"]] == [(3, 1)]
    assert {row["plan"]: row["devices"] for row in overview["plans"]} == {"subnet": 2, "exits + ask early": 1}
    latency = [(row["up_to"], row["devices"]) for row in overview["latency"] if row["devices"]]
    assert latency == [(0.5, 1), (0.8, 1), (None, 1)]
    assert [(row["up_to"], row["devices"]) for row in overview["asked"] if row["devices"]] == [(0.0, 2), (0.2, 1)]
    page = text(running)
    assert "2 devices within their latency budget, 1 over it" in page
    assert "saved latency_ms 0.4" in page


def test_failures_by_hour_and_by_day(serve, tiny, clock, send, log_line):
    server = serve(tiny.folder, now=clock)
    failed = {"event": "switch_failed", "subnet": "o0", "failure": "no memory"}
    send(server, "a", {**log_line(11 * 60), "event": failed}, {**log_line(11 * 60 + 5), "event": failed})
    send(server, "b", {**log_line(10 * 60), "event": failed})
    by_hour = {row["period"]: row["switch"] for row in server.ask("/?format=json").json()["failures"]}
    assert len(by_hour) == 48
    assert (by_hour["2026-05-01T11"], by_hour["2026-05-01T10"], sum(by_hour.values())) == (1, 1, 2)
    by_day = server.ask("/?format=json&by=day").json()["failures"]
    assert len(by_day) == 30
    assert (by_day[-1]["period"], by_day[-1]["switch"]) == ("2026-05-01", 2)
    page = text(server)
    assert "plan not loaded" in page
    assert "kind-switch" in page


def test_one_device_with_its_plans_over_time_and_its_events(running, send, log_line):
    lines = [log_line(1), log_line(2, "adapted"), log_line(3, "adapted", measured_ms=9.0)]
    send(running, "a", *lines, {**log_line(4), "event": chosen()})
    send(running, "b", log_line(50, "adapted", measured_ms=77.0))
    page = text(running, "/page/devices/a")
    assert '<svg class="chart long"' in page
    assert page.count("<circle") == 3
    assert page.count('class="dot bad"') == 1
    assert page.count('class="change"') == 2
    assert "77" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    assert "saved latency_ms 0.4" in page
    assert running.ask("/page/devices/unknown").status == 404


def test_events_of_a_device_page_by_page(running, send, log_line):
    send(running, "a", *(log_line(minute) for minute in range(70)))
    first = running.ask("/page/devices/a?format=json").json()["events"]
    page = text(running, "/page/devices/a")
    following = html.unescape(re.search(r'href="([^"]*)" rel="next"', page).group(1))
    second = running.ask(f"{following}&format=json").json()["events"]
    assert [row["time"][14:16] for row in first + second] == [f"{minute % 60:02d}" for minute in reversed(range(70))]


def test_dropped_lines_are_reported(serve, tiny, send, log_line):
    server = serve(tiny.folder, keep_log_lines=3)
    send(server, "a", *(log_line(minute) for minute in range(5)))
    assert "5 log lines since" in text(server, "/page/devices/a")
    [device] = server.ask("/v1/devices").json()["devices"]
    assert (device["lines"], device["dropped"]) == (3, 2)


def test_the_latest_events_come_first(running, send, log_line):
    send(running, "a", log_line(5), log_line(70, "adapted"))
    page = text(running)
    assert page.index("2026-05-01 01:10:00") < page.index("2026-05-01 00:05:00")
    assert "measured_ms 1.5" in page


@pytest.mark.parametrize("path", [*VIEWS, "/page/devices/{name}"])
def test_what_devices_send_is_text_and_never_markup(running, log_line, ndjson, path):
    hostile = "<script>alert(1)</script>\"' onload=x"
    event = {**chosen(plan_kind=hostile, subnet=hostile)}
    failed = {"event": "switch_failed", "subnet": hostile, "failure": hostile}
    lines = [{**log_line(1), "event": event, "bundle": hostile, "runtime": hostile}, {**log_line(2), "event": failed}]
    checked = check_lines(ndjson(*lines), max_line_bytes=10_000)
    # No device can have this name through the address; the page does not rely on that.
    for device in ("a", "<script>alert(2)</script>"):
        running.services.logs.add(device, [CheckedLine(line.digest, line.time, line.line) for line in checked])
    page = text(running, path.format(name="a"))
    tags = Tags(page).found
    assert [name for name, _ in tags].count("script") == 1  # its own
    assert not any("onload" in attributes for _, attributes in tags)
    if path not in ("/page/bundles", "/page/rollouts", "/page/jobs"):
        assert "&lt;script&gt;alert(1)" in page


def test_a_long_plan_is_cut(running, send, log_line):
    send(running, "a", log_line(1, subnet="o1 " * 5000))
    assert len(text(running)) < 60_000


@pytest.mark.parametrize("path", VIEWS)
def test_nothing_but_the_pages_own_style_and_script_may_load(running, path):
    page = running.ask(path)
    style = re.search(r"<style>(.*?)</style>", page.body.decode(), flags=re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert re.findall(r"src=[^\s>]*", page.body.decode()) == ['src="/page/script.js"']
    assert all(link.startswith(("/", "#")) for link in re.findall(r'href="([^"]*)"', page.body.decode()))
    assert not re.search(r"https?://|style=|@import|url\(", page.body.decode())
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", VIEWS)
def test_views_can_be_used_without_sight_and_mouse(running, send, log_line, path):
    send(running, "a", log_line(1, "adapted"))
    page = text(running, path)
    assert page.count("<main") == page.count("<h1>") == 1
    assert 'lang="en"' in page
    assert 'href="#main"' in page
    assert 'aria-current="page"' in page
    assert len(re.findall(r"<table>\n<caption", page)) == page.count("<table>")
    assert not re.search(r"<thead><tr><th(?! scope)", page)
    assert all('aria-label="' in chart for chart in re.findall(r'<svg class="chart.*?>', page))
    for field in re.findall(r"<(?:input|select)[^>]*>", page):
        assert 'type="hidden"' in field or re.search(rf"<label[^>]*>[^<]*{re.escape(field)}", page), field


def test_what_did_not_change_is_not_sent_again(serve, tiny, clock, send, log_line):
    server = serve(tiny.folder, now=clock)
    send(server, "a", log_line(1))
    for path in (*VIEWS, "/page/devices/a"):
        etag = server.ask(path).headers["etag"]
        again = server.ask(path, headers={"If-None-Match": etag})
        assert (again.status, again.body) == (304, b"")
    etag = server.ask("/").headers["etag"]
    send(server, "a", log_line(2))
    assert server.ask("/", headers={"If-None-Match": etag}).status == 200


def test_csv_is_safe_in_a_spreadsheet(running, log_line, ndjson):
    lines = [{**log_line(1), "event": chosen(plan_kind="=cmd|' /C calc'!A0", subnet="-1+1", latency_ms=-3.5)}]
    running.services.logs.add('@SUM(A1),"x"', check_lines(ndjson(*lines), max_line_bytes=10_000))
    reply = running.ask("/page/devices?format=csv")
    assert reply.headers["content-type"].startswith("text/csv")
    assert reply.headers["content-disposition"] == 'attachment; filename="devices.csv"'
    [row] = csv.DictReader(io.StringIO(reply.body.decode()))
    assert row["device"] == '\'@SUM(A1),"x"'
    assert row["plan_kind"].startswith("'=cmd")
    assert row["subnet"] == "'-1+1"
    assert row["latency_ms"] == "-3.5"
    assert row["failure"] == ""


@pytest.mark.parametrize("path", [*VIEWS, "/page/devices/a", "/page/bundles/tiny"])
def test_everything_is_there_as_json_and_csv(running, send, log_line, path):
    send(running, "a", log_line(1, "adapted"))
    found = running.ask(path, headers={"Accept": "application/json"}).json()
    assert found == running.ask(f"{path}?format=json").json()
    for name, its_rows in found.items():
        reply = running.ask(f"{path}?table={name}", headers={"Accept": "text/csv"})
        lines = list(csv.reader(io.StringIO(reply.body.decode())))
        assert len(lines) == len(its_rows) + 1
        assert all(list(row) == lines[0] for row in its_rows)
    shown = set(re.findall(r"format=json&amp;table=(\w+)", text(running, path)))
    assert shown <= set(found)


@pytest.mark.parametrize(
    "path",
    [
        "/?format=xml",
        "/?format=csv&table=x",
        "/?by=week",
        "/page/devices?sort=x",
        "/page/devices?after=!",
        "/page/devices/a?before=x",
    ],
)
def test_addresses_that_ask_for_what_there_is_not_are_refused(running, send, log_line, path):
    send(running, "a", log_line(1))
    reply = running.ask(path)
    assert reply.status == 400
    assert reply.json()["hint"]


@pytest.mark.parametrize(
    ("path", "status"), [("/?by=week", 400), ("/page/devices/unknown", 404), ("/page/nothing", 404)]
)
def test_errors_are_pages_for_browsers_and_json_for_programs(running, path, status):
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    page = running.ask(path, headers=browser)
    assert page.status == status
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    error = running.ask(path).json()
    assert f"<h1>{html.escape(error['error'][:1].upper() + error['error'][1:])}</h1>" in page.body.decode()
    assert html.escape(error.get("hint", "")) in page.body.decode()
    for headers in ({"Accept": "application/json"}, {"Accept": "*/*"}):
        assert running.ask(path, headers=headers).json() == error


def test_errors_elsewhere_are_json_for_browsers_too(running):
    assert running.ask("/v1/bundles/none", headers={"Accept": "text/html"}).json()["error"]


def test_a_browser_that_has_to_give_a_password_gets_a_page(serve, tiny):
    server = serve(tiny.folder, token="secret")
    reply = server.ask("/", headers={"Accept": "text/html"})
    assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (401, "text/html")
    assert reply.headers["www-authenticate"].startswith("Basic")


def test_tokens_without_secrets_are_for_administrators(serve, tiny):
    server = serve(tiny.folder)
    tokens = server.services.tokens
    secret = tokens.new("boss", days=9, scope=Scope.ADMIN)
    other = tokens.new("op", days=9, scope=Scope.OPERATOR)
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()}
    page = text(server, "/page/tokens", **basic)
    assert rows(page)["op"][:2] == ["op", "operator"]
    assert secret not in page
    assert other not in page
    assert "/page/tokens" in text(server, "/", **basic)
    lower = {"Authorization": f"Bearer {other}"}
    assert server.ask("/page/tokens", headers=lower).status == 403
    assert "/page/tokens" not in text(server, "/", **lower)


def test_tokens_come_page_by_page_and_are_exported_whole(serve, tiny):
    server = serve(tiny.folder)
    tokens = server.services.tokens
    boss = {"Authorization": f"Bearer {tokens.new('boss', days=9, scope=Scope.ADMIN)}"}
    names = [f"device-{number:03d}" for number in range(60)]
    for name in names:
        tokens.new(name, days=9)
    first = text(server, "/page/tokens", **boss)
    assert [name for name in rows(first) if name != "Name"] == ["boss", *names[:49]]
    [after] = re.findall(r'href="(/page/tokens\?after=[^"]*)"', first)
    second = text(server, after, **boss)
    assert [name for name in rows(second) if name != "Name"] == names[49:]
    assert 'rel="next"' not in second
    exported = server.ask("/page/tokens?format=json", headers=boss).json()
    assert len(exported["tokens"]) == 61


def test_a_browser_is_asked_for_a_password_at_every_view(serve, tiny):
    server = serve(tiny.folder, token="secret")
    for path in VIEWS:
        assert server.ask(path).headers["www-authenticate"].startswith("Basic")
    assert server.ask("/v1/jobs").headers["www-authenticate"] == "Bearer"
