from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import MissingExtraError, PathweaveError, StorageError, UsageError
from pathweave import __version__
from pathweave.cli import COMMANDS, MOVED, as_missing_extra, cli, main

ROOT = Path(__file__).parents[2]

FAILURES: dict[str, BaseException] = {
    "storage": StorageError("cannot write x", hint="free some space"),
    "plain": PathweaveError("two\nlines"),
    "usage": UsageError("that makes no sense"),
    "extra": MissingExtraError("torch", extra="packager"),
    "import": ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"),
    "own": ModuleNotFoundError("No module named 'packager.nowhere'", name="packager.nowhere"),
    "bug": ZeroDivisionError("by zero"),
    "interrupt": KeyboardInterrupt(),
    "exit": click.exceptions.Exit(1),
}


@click.command("fail", help="Fail in a way that is asked for.")
@click.argument("how", type=click.Choice([*FAILURES, "none"]))
@json_option
def fail(how: str, as_json: bool) -> None:
    print("a library prints")
    if how in FAILURES:
        raise FAILURES[how]
    emit({"fine": float("nan")}, as_json=as_json, text="fine")


TORCH_IS_MISSING = [
    "error: this needs torch, which is not installed",
    "hint: pip install 'pathweave[packager]'",
]

failing = click.Group(commands=[fail])


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("how", "status", "lines"),
    [
        ("storage", 1, ["error: cannot write x", "hint: free some space"]),
        ("plain", 1, ["error: two lines"]),
        ("usage", 2, ["error: that makes no sense"]),
        ("extra", 2, TORCH_IS_MISSING),
        ("import", 2, TORCH_IS_MISSING),
        ("exit", 1, []),
        ("none", 0, []),
    ],
)
def test_an_error_is_a_line_a_hint_and_an_exit_status(
    how: str, status: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fail", how], group=failing) == status
    assert capsys.readouterr().err.splitlines() == lines


def test_scripts_find_the_error_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail", "storage", "--json"], group=failing) == 1
    output, errors = capsys.readouterr()
    assert json.loads(output) == {
        "error": {"type": "StorageError", "message": "cannot write x", "hint": "free some space"}
    }
    assert "error: cannot write x" in errors


def test_standard_output_is_one_json_object_whatever_libraries_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fail", "none", "--json"], group=failing) == 0
    output, errors = capsys.readouterr()
    assert output == '{"fine": null}\n'
    assert errors == "a library prints\n"


def test_wrong_usage_exits_with_2_and_says_where_help_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail", "none", "--nonsense", "--json"], group=failing) == 2
    output, errors = capsys.readouterr()
    assert json.loads(output)["error"]["type"] == "UsageError"
    assert "--nonsense" in errors.splitlines()[0]
    assert errors.splitlines()[1] == "hint: pathweave fail --help"
    assert main(["no-such-command"]) == 2
    assert main([]) == 2


def test_an_interrupt_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail", "interrupt"], group=failing) == 130
    assert capsys.readouterr().err.strip() == "interrupted; run the same command again to resume"


def test_an_interrupt_is_one_json_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail", "interrupt", "--json"], group=failing) == 130
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "Interrupted"


def test_a_missing_module_of_our_own_is_not_called_an_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path))
    assert main(["fail", "own"], group=failing) == 1
    assert "unexpected ModuleNotFoundError: No module named 'packager.nowhere'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        as_missing_extra(ModuleNotFoundError("No module named None"))


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_an_unexpected_exception_is_a_line_and_a_report_file(
    as_json: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path))
    assert main(["fail", "bug", *as_json], group=failing) == 1
    output, errors = capsys.readouterr()
    (report,) = (tmp_path / "reports").iterdir()
    assert errors.splitlines()[-2:] == [
        "error: unexpected ZeroDivisionError: by zero",
        f"hint: report it with {report}",
    ]
    text = report.read_text(encoding="utf-8")
    assert "command: pathweave fail bug" in text
    assert "numpy " in text
    assert "Traceback" not in output + errors
    assert "raise FAILURES[how]" in text
    if as_json:
        assert json.loads(output)["error"]["type"] == "ZeroDivisionError"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_characters_that_the_output_lacks_are_replaced(encoding: str, as_json: tuple[str, ...]) -> None:
    code = (
        "import click, sys\nfrom device_sdk.commands.command_line import emit\nfrom pathweave.cli import main\n"
        "@click.command()\n@click.option('--json', 'as_json', is_flag=True)\n"
        "def named(as_json): emit({'label': '猫 😀'}, as_json=as_json, text='猫 😀')\nsys.exit(main(group=named))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code, *as_json], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if as_json:
        assert json.loads(done.stdout) == {"label": "猫 😀"}
    else:  # click writes UTF-8 where ASCII is all that the locale has
        assert done.stdout in (b"? ?\n", "猫 😀\n".encode())


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().endswith(__version__)


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_an_earlier_name_says_in_one_line_what_to_write_now(
    before: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([before, "list", "--help"]) == 2
    assert capsys.readouterr().err == f"error: `pathweave {before}` is now `{now}`\n"
    if now.startswith("python"):
        return
    command = cli.get_command(click.Context(cli), now.split()[1])
    assert command is not None
    options = {name for one in command.params for name in one.opts}
    assert all(word in options for word in now.split() if word.startswith("--"))


def test_every_command_loads_and_takes_json() -> None:
    def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from leaves(f"{name} {inner}", found)
        else:
            yield name, command

    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for path, leaf in leaves(name, command):
            assert leaf.get_short_help_str(), f"pathweave {path} has no help"
            assert any("--json" in option.opts for option in leaf.params), f"pathweave {path} has no --json"


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from pathweave.cli import main; main(['--help']);"
        "print('heavy:', sorted({'torch', 'onnxruntime', 'sklearn', 'PIL'} & set(sys.modules)))"
    )
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stdout
    assert "cannot be loaded" not in done.stdout
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_a_clone_runs_as_a_module_from_anywhere(tmp_path: Path) -> None:
    done = python("-m", "pathweave", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(__version__)


def test_a_reader_that_leaves_early_is_met_with_silence() -> None:
    command = f'"{sys.executable}" -m pathweave --help | true; echo "${{PIPESTATUS[0]}}"'
    for _ in range(5):
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        assert done.stdout.strip() in {"0", "1"}
