from __future__ import annotations

import re

import pytest

from server.app import create_app

pytestmark = pytest.mark.embedded


@pytest.fixture
def told(server):
    return server.ask("/openapi.json").json()


def test_every_address_of_the_server_is_described(server, told):
    app = create_app(server.services.settings, services=server.services)
    rules = {re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule) for rule in app.url_map.iter_rules()}
    assert set(told["paths"]) == rules
    assert told["openapi"].startswith("3.1")


def test_parameters_and_references_lead_somewhere(told):
    for path, operations in told["paths"].items():
        for operation in operations.values():
            assert {one["name"] for one in operation["parameters"]} == set(re.findall(r"\{(\w+)\}", path))
    references = set(re.findall(r"#/components/schemas/([^'\"]+)", str(told)))
    assert references <= set(told["components"]["schemas"])
    assert {"PlacementRequest", "Enrolment", "NewCode", "JobRequest"} <= set(told["components"]["schemas"])


def test_operations_have_names_of_their_own(told):
    names = [one["operationId"] for path in told["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)


def test_bodies_are_described_by_the_type_that_checks_them(server, told):
    schema = told["components"]["schemas"]["PlacementRequest"]
    assert schema["properties"]["search_ms"]["minimum"] == 0
    assert server.post("/v1/placements", {"bundle": "tiny", "search_ms": -1}).status == 400
    assert server.post("/v1/placements", {"bundle": "tiny", "search_ms": 1}).status == 200
    assert told["components"]["schemas"]["NewCode"]["additionalProperties"] is False


def test_only_public_addresses_need_no_token(told):
    public = {path for path, operations in told["paths"].items() for one in operations.values() if not one["security"]}
    assert {"/health", "/ready", "/openapi.json", "/v1/enrolments"} <= public
    assert not public & {"/metrics", "/v1/jobs", "/v1/tokens", "/v1/logs", "/v1/bundles"}
