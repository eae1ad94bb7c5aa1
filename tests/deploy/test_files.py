"""What the files of deploy/ say to each other and to the command line; nothing is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pathweave.cli import load_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> dict[str, dict[str, Any]]:
    """By kind, and the workers as "Workers"."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    [workers] = [one for one in found if one["metadata"]["name"] == "pathweave-worker"]
    return {one["kind"]: one for one in found if one is not workers} | {"Workers": workers}


def worker_container() -> dict[str, Any]:
    return manifests()["Workers"]["spec"]["template"]["spec"]["containers"][0]


def container() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def image_command() -> list[str]:
    return json.loads(re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[1])


@pytest.mark.parametrize("command", [image_command(), container()["args"]], ids=["image", "kubernetes"])
def test_a_servers_command_line_is_understood(command: list[str]) -> None:
    name, *options = command
    context = load_command(name).make_context(name, list(options))
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 8000)
    assert context.params["bundles"] == "s3://models/fleet"


@pytest.mark.parametrize(
    "command", [compose()["services"]["worker"]["command"], worker_container()["args"]], ids=["compose", "kubernetes"]
)
def test_a_workers_command_line_is_understood_and_has_the_servers_store(command: list[str]) -> None:
    name, *options = command
    context = load_command(name).make_context(name, list(options))
    assert context.params["bundles"] == "s3://models/fleet"
    assert str(context.params["data_folder"]) == "/var/cache/pathweave"


def test_workers_have_the_servers_database_and_time_to_give_jobs_back() -> None:
    services = compose()["services"]
    assert services["worker"]["environment"] == services["server-1"]["environment"]
    names = {one["name"] for one in container()["env"]}
    assert {one["name"] for one in worker_container()["env"]} == names
    extras = services["worker"]["build"]["args"]["EXTRAS"]
    assert {"server", "fleet", "packager"} <= set(extras.split(","))
    assert f"EXTRAS={extras}" in (DEPLOY / "Dockerfile").read_text()
    assert int(services["worker"]["stop_grace_period"].removesuffix("s")) >= 30
    assert manifests()["Workers"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    assert manifests()["Workers"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


def test_every_server_of_the_composition_is_behind_the_proxy_on_its_port() -> None:
    services = compose()["services"]
    servers = {name for name, one in services.items() if one.get("image") == "pathweave-server"}
    upstream = re.findall(r"^\s+server ([\w-]+):(\d+)", (DEPLOY / "nginx.conf").read_text(), re.MULTILINE)
    assert {name for name, _ in upstream} == servers
    assert {port for _, port in upstream} == {"8000"}
    assert len(servers) > 1
    [published] = services["nginx"]["ports"]
    assert f"listen {published.split(':')[1]};" in (DEPLOY / "nginx.conf").read_text()


def test_servers_find_their_database_and_store() -> None:
    services = compose()["services"]
    environment = services["server-1"]["environment"]
    assert "@database/" in environment["PATHWEAVE_DATABASE_URL"]
    host, port = environment["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
    assert f":{port} " in services[host]["entrypoint"][2]
    assert "/data/models" in services[host]["entrypoint"][2], "the bucket of s3://models/fleet"


def test_secrets_are_named_and_not_stated() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    given = dict(line.split("=", 1) for line in (DEPLOY / "example.env").read_text().splitlines() if "=" in line)
    assert wanted == set(given)
    assert not any(given.values())


def test_the_proxy_takes_bodies_as_large_as_the_server() -> None:
    serve = load_command("serve")
    largest = next(one for one in serve.params if one.name == "max_body_bytes")
    assert isinstance(largest, click.Option)
    assert f"client_max_body_size {largest.default}m;" in (DEPLOY / "nginx.conf").read_text()


def test_images_are_pinned_and_servers_are_not_root() -> None:
    named = [one["image"] for one in compose()["services"].values() if "build" not in one]
    named += re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert all(re.search(r":v?\d+\.\d+", image) for image in named), named
    assert re.search(r"^USER 10001$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert manifests()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists()
            assert name in kept


def test_the_cluster_asks_for_readiness_and_keeps_a_server_while_it_upgrades() -> None:
    assert container()["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container()["livenessProbe"]["httpGet"]["path"] == "/health"
    assert manifests()["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    scaled = manifests()["HorizontalPodAutoscaler"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == manifests()["Deployment"]["metadata"]["name"]
    assert 2 <= scaled["minReplicas"] < scaled["maxReplicas"]
    assert (
        manifests()["Service"]["spec"]["selector"]
        == manifests()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    )
