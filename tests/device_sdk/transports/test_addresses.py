from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.transports.port import base, origin


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Example.org/a/b", "http://example.org:80"),
        ("HTTPS://example.org", "https://example.org:443"),
        ("http://[::1]:8000/x", "http://[::1]:8000"),
        ("grpc://host:1", "grpc://host:1"),
    ],
)
def test_an_origin_is_written_in_one_way(url, expected):
    assert origin(url) == expected


@pytest.mark.parametrize(
    "url",
    ["", "bundle", "/v1/bundles", "http://", "http:///x", "http://host:port/", "http://h:99999/", "http://h/a b",
     "http://h/a\r\nX: 1", "http://[::1/", "http://höst/"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="not an address") as caught:
        origin(url)
    assert caught.value.hint


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match="password") as caught:
        origin("http://me:secret@host/")
    assert "secret" not in str(caught.value)


def test_a_base_has_no_slash_at_its_end():
    assert base("http://host/v1/bundles/tiny//") == "http://host/v1/bundles/tiny"


@pytest.mark.parametrize("url", ["http://host/?a=1", "http://host/#there"])
def test_a_base_has_no_query_and_no_fragment(url):
    with pytest.raises(UsageError):
        base(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@host/",
        "http://me:secret@ho st/",
        "http://me:sec/secret@host:port/",
        "http://me:secret?x#@host",
        "http://host/?token=secret",
        "http://host/#secret",
        "me:secret@host/v1",
    ],
)
def test_no_error_about_an_address_repeats_a_secret(url):
    with pytest.raises(UsageError) as caught:
        base(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.__cause__)
