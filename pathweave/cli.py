"""The command line: finds the subcommands, imports the one to run, prints errors as lines.

Unexpected exceptions become a line as well; their traceback goes into a report file.

Exit status: 0 success, 1 failure, 2 wrong usage or a missing extra, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

import click

from device_sdk.commands.command_line import log_to_stderr, only_results_on_stdout, replace_unprintable
from device_sdk.errors import MissingExtraError, PathweaveError, UsageError
from pathweave import __version__
from pathweave.error_report import shortened, write_error_report

COMMAND_GROUP = "pathweave.commands"

# Other distributions add theirs as entry points of the group.
COMMANDS = {
    "package": "packager.commands.package:package",
    "inspect": "packager.commands.inspecting:inspect",
    "sign": "packager.commands.signing:sign",
    "serve": "server.commands:serve",
    "worker": "server.worker_command:worker",
    "admin": "server.admin:admin",
    "migrate-state": "server.moving_command:migrate_state",
    "export": "server.export_command:export",
    "fetch": "device_sdk.commands.fetch_command:fetch",
    "profile": "device_sdk.commands.profile_command:profile",
    "adapt": "device_sdk.commands.adapt_command:adapt",
    "run": "device_sdk.commands.run_and_logs:run",
    "logs": "device_sdk.commands.run_and_logs:logs",
    "demo": "pathweave.commands:demo",
}

# Earlier names of commands, and what to write now.
MOVED: dict[str, str] = {
    "bench": "python -m benchmarks",
    "calibrate": "pathweave adapt --consider exits",
    "doctor": "pathweave package --check",
    "jobs": "pathweave admin jobs",
    "key": "pathweave sign key",
    "package-hybrid": "pathweave package --pair",
    "place": "pathweave fetch --exit-memory-mb",
    "plan": "pathweave adapt --consider all",
    "plan-hybrid": "pathweave adapt --consider hybrid",
    "release": "pathweave sign release",
    "split": "pathweave adapt --consider split",
    "token": "pathweave admin token",
}

# The extra that installs a module. An import error of a module that is not listed is a bug.
EXTRA_OF_MODULE = {
    "torch": "packager",
    "onnx": "packager",
    "onnxscript": "packager",
    "safetensors": "packager",
    "sklearn": "packager",
    "flask": "server",
    "waitress": "server",
    "sqlalchemy": "server",
    "alembic": "server",
    "prometheus_client": "server",
    "opentelemetry": "telemetry",
    "psycopg": "fleet",
    "obstore": "fleet",
    "torchvision": "vision",
    "timm": "vision",
    "transformers": "huggingface",
    "onnxruntime_qnn": "qnn",
}

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(
    arguments: Sequence[str] | None = None, *, group: click.Command | None = None, prog_name: str = "pathweave"
) -> int:
    """Run a command line (default: ``sys.argv``, with all commands) and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in arguments
    replace_unprintable(sys.stdout)
    try:
        return _run(arguments, group or cli, prog_name, as_json=as_json)
    except Exception as error:  # the last net: a bug of ours, or of a library
        report = write_error_report(error, [prog_name, *arguments])
        with contextlib.suppress(OSError, ValueError):  # a closed or full output must not hide the exit status
            name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = f"report it with {report}" if report else "no report could be written"
            _report(type(error).__name__, f"unexpected {shortened(name)}", hint, as_json=as_json)
        return FAILED


def _run(arguments: Sequence[str], group: click.Command, prog_name: str, *, as_json: bool) -> int:
    """Run a command line; every error raised on purpose becomes its lines and exit status."""
    try:
        with only_results_on_stdout() if as_json else contextlib.nullcontext():
            status = group.main(args=list(arguments), prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, click.Abort):
        said = "interrupted; run the same command again to resume"
        click.echo(said, err=True)
        if as_json:
            click.echo(json.dumps({"error": {"type": "Interrupted", "message": said, "hint": None}}))
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context else None
        _report("UsageError", error.format_message(), hint, as_json=as_json)
        return error.exit_code
    except (PathweaveError, ModuleNotFoundError) as error:
        reported = as_missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        _report(type(reported).__name__, str(reported), reported.hint, as_json=as_json)
        return USAGE if isinstance(reported, (UsageError, MissingExtraError)) else FAILED


def as_missing_extra(error: ModuleNotFoundError) -> MissingExtraError:
    """``error`` as a MissingExtraError that names the extra to install.

    Raises:
        ModuleNotFoundError: ``error`` itself, if no extra installs the module.
    """
    module = (error.name or "").split(".")[0]
    if module not in EXTRA_OF_MODULE:
        raise error
    return MissingExtraError(module, extra=EXTRA_OF_MODULE[module])


def _report(error_type: str, message: str, hint: str | None, *, as_json: bool) -> None:
    message = " ".join(message.splitlines())
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    if as_json:
        click.echo(json.dumps({"error": {"type": error_type, "message": message, "hint": hint}}))


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null after a broken pipe, so that the interpreter's final flush does not fail."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@cache
def command_table() -> dict[str, str]:
    """``{name: "module:attribute"}`` of all commands, including those of other distributions."""
    registered = {entry.name: entry.value for entry in entry_points(group=COMMAND_GROUP) if entry.name not in MOVED}
    return {**registered, **COMMANDS}


def load_command(name: str) -> click.Command:
    """Import a command of the table."""
    module, attribute = command_table()[name].split(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command), f"{module}:{attribute} is not a click command"
    return command


class LazyCommands(click.Group):
    """A group that imports a command only to run it or to list its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(command_table())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in MOVED:
            raise UsageError(f"`pathweave {cmd_name}` is now `{MOVED[cmd_name]}`")
        return load_command(cmd_name) if cmd_name in command_table() else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in self.list_commands(ctx)])


def _summary(name: str) -> str:
    try:
        return load_command(name).get_short_help_str(limit=90)
    except MissingExtraError as error:
        return f"({error.hint})"
    except (ImportError, AttributeError) as error:  # a broken command does not prevent the help of the others
        return f"(cannot be loaded: {error})"


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pathweave")
@click.option("-v", "--verbose", is_flag=True, help="Log at level INFO, on standard error.")
def cli(verbose: bool) -> None:
    """Pretrained networks that fit themselves to the device they run on."""
    log_to_stderr(verbose=verbose)
