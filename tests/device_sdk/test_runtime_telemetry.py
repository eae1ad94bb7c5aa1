from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from device_sdk.runtime_telemetry import VARIABLE, disable_runtime_telemetry

PACKAGES = ("device_sdk", "packager.errors", "server.settings", "pathweave", "jetson_demo.providers", "benchmarks")


@pytest.mark.parametrize("said", [None, "", "0", "false", "off", "no", " "])
def test_whatever_else_is_said_it_is_off(said):
    environment = {} if said is None else {VARIABLE: said}
    disable_runtime_telemetry(environment, imported={})
    assert environment == {VARIABLE: "1"}


@pytest.mark.parametrize("said", ["1", "true", " YES ", "on", "y"])
def test_a_users_own_no_stays_as_it_is(said):
    environment = {VARIABLE: said}
    disable_runtime_telemetry(environment, imported={"onnxruntime": SimpleNamespace(__version__="1.32.0")})
    assert environment == {VARIABLE: said}


@pytest.mark.parametrize(
    ("version", "warns"), [("1.29.0", True), ("1.32.0", True), ("2.0.1", True), ("1.28.9", False), ("", False)]
)
def test_a_runtime_that_was_imported_before_is_said(caplog, version, warns):
    with caplog.at_level(logging.WARNING):
        disable_runtime_telemetry({}, imported={"onnxruntime": SimpleNamespace(__version__=version)})
    assert ("import pathweave first" in caplog.text) == warns


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("said", [None, "0"])
def test_each_package_switches_it_off_for_itself_and_its_children(package, said):
    child = f"import os; print(os.environ.get({VARIABLE!r}))"
    code = f"import sys, subprocess, {package}; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {} if said is None else {VARIABLE: said}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.strip() == "1", done.stderr
