"""The command line: one module per command, imported when the command is used.

So `shardlab layout` and shell completion are fast: they load neither JAX nor NumPy nor the other
commands.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module

import click

from shardlab import __version__
from shardlab._text.nearest import nearest_name
from shardlab.errors import LabError

COMPLETE_VARIABLE = "_SHARDLAB_COMPLETE"  # click derives the same name from `shardlab`

# name -> module with a click command called `command`
_COMMANDS = {
    "layout": "shardlab.cli.layout",
    "plan": "shardlab.cli.plan",
    "advise": "shardlab.cli.advise",
    "reshard": "shardlab.cli.reshard",
    "run": "shardlab.cli.run",
    "launch": "shardlab.cli.launch",
    "trace": "shardlab.cli.trace",
    "autoshard": "shardlab.cli.autoshard",
    "check": "shardlab.cli.check",
    "record": "shardlab.cli.record",
    "learn": "shardlab.cli.learn",
    "practice": "shardlab.cli.practice",
    "serve": "shardlab.cli.serve",
    "worker": "shardlab.cli.worker",
    "people": "shardlab.cli.people",
    "rejudge": "shardlab.cli.rejudge",
    "backup": "shardlab.cli.backup",
    "restore": "shardlab.cli.restore",
    "catalogue": "shardlab.cli.catalogue",
    "completion": "shardlab.cli.completion",
}

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

_HELP = """Design, run and check JAX sharding for meshes you do not have.

    Results go to standard output; notes, progress and warnings to standard error. `--json FILE`
    writes a result as data, and `--json -` prints it.

    \b
    Exit codes of all commands
      0    ok; there may be warnings
      1    errors were found, a model does not fit, plans differ, an audit or a test failed
      2    the command, a file or the program cannot be used
      124  the time limit was reached
      130  interrupted
    `shardlab check` ends with 4 if it found no errors but could not compare values.
    `shardlab run` ends with the exit code of the program; with --strict, 3 if replicas differ.
    """


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        # click 8.1 makes no suggestion of its own.
        if args[0] not in _COMMANDS and (match := nearest_name(args[0], _COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {match!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; print a `LabError` in its three parts, without a traceback."""
        try:
            return super().invoke(ctx)
        except LabError as error:
            click.echo(error_text(error), err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            # click itself would end with 1, which means findings here.
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except OSError as error:
            # A file that cannot be written is reported where it is written; left over is a line
            # that a command prints to standard output, which may be a file on a full disk.
            if error.filename is not None or error.errno not in _FULL_DISK:
                raise
            # Python flushes its buffer once more at exit, which would fail again with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.UsageError(f"standard output: {error.strerror}") from None


def error_text(error: LabError) -> str:
    """Return the three parts with code and labels highlighted; click drops color in pipes."""
    text = str(error).replace(f"[{error.code}]", click.style(f"[{error.code}]", fg="red"), 1)
    for label in ("where:", "try:"):
        text = text.replace(f"\n  {label}", f"\n  {click.style(label, bold=True)}", 1)
    return text


@click.group(cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardlab")
def main() -> None:
    """Run the command line."""


if COMPLETE_VARIABLE in os.environ:
    # The shell asks for completions: our classes must be registered before click looks for one.
    import_module("shardlab.cli.completion")
