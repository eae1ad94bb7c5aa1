"""Requests that are made from the OpenAPI document, alone and along its links: none ends as an error of the server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra: pip install 'pathweave[dev]'")

pytestmark = [pytest.mark.slow, pytest.mark.replicas(3)]

EXAMPLES = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def document(server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_no_operation_fails_whatever_is_sent(document):
    tried = 0
    for found in document.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @EXAMPLES
        def send(case):
            assert case.call(timeout=30).status_code < 500, case.as_curl_command()

        send()
        tried += 1
    assert tried > 30


def test_no_sequence_along_links_fails(document):
    machine = document.as_state_machine()

    class OnlyServerErrors(machine):  # type: ignore[misc, valid-type]
        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            assert response.status_code < 500, case.as_curl_command()

    OnlyServerErrors.run(settings=settings(EXAMPLES, stateful_step_count=6))


def test_the_document_links_what_lists_name_to_the_addresses_that_take_it(document):
    links = document.raw_schema["paths"]["/v1/bundles"]["get"]["responses"]["2XX"]["links"]
    assert links["bundles.describe"]["parameters"] == {"name": "$response.body#/bundles/0/name"}
    assert links["bundles.describe"]["operationId"] == "bundles.describe.get"
