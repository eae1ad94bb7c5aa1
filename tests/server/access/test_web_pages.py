from __future__ import annotations

import pytest

from server.access.authentication import check_content_type, check_host, check_origin
from server.errors import EncodingError, ForbiddenError


@pytest.mark.parametrize(
    "host",
    [None, "127.0.0.1:8000", "[::1]:8000", "192.0.2.7", "localhost:80", "pathweave", "pw.example:1", "PW.example"],
)
def test_hosts_that_are_this_server(host):
    check_host(host, ["pw.example"])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", "localhost.", ""]
)
def test_hosts_that_an_attackers_dns_may_resolve(host):
    with pytest.raises(ForbiddenError, match="Host"):
        check_host(host, ["pw.example"])


def test_requests_of_programs_and_of_the_servers_own_page_pass():
    check_origin("POST", "127.0.0.1:8000", None, None)
    check_origin("POST", "127.0.0.1:8000", "http://127.0.0.1:8000", "same-origin")
    check_origin("GET", "127.0.0.1:8000", None, "cross-site")  # a link to the page
    check_origin("POST", "127.0.0.1:8000", None, "none")


@pytest.mark.parametrize(
    ("method", "origin", "fetch_site"),
    [
        ("POST", "http://evil.example", None),
        ("GET", "http://evil.example", None),
        ("POST", "null", None),
        ("POST", "http://127.0.0.1:9000", None),
        ("POST", None, "cross-site"),
        ("DELETE", None, "same-site"),
    ],
)
def test_requests_of_pages_of_other_sites_are_refused(method, origin, fetch_site):
    with pytest.raises(ForbiddenError, match="another site"):
        check_origin(method, "127.0.0.1:8000", origin, fetch_site)


def test_bodies_that_a_form_could_send_are_refused():
    check_content_type("application/json", ["application/json"])
    for mimetype in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        with pytest.raises(EncodingError) as caught:
            check_content_type(mimetype, ["application/json"])
        assert caught.value.hint == "send the header Content-Type: application/json"
