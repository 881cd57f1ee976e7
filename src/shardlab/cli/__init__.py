"""The command line: each command in a module of its own, loaded when used.

So `shardlab layout` starts at once: it loads neither JAX nor NumPy nor the other commands.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

import click

from shardlab import __version__
from shardlab.errors import LabError

# name -> module with a click command called `command`
_COMMANDS = {
    "layout": "shardlab.cli.layout",
    "plan": "shardlab.cli.plan",
    "advise": "shardlab.cli.advise",
    "run": "shardlab.cli.run",
    "trace": "shardlab.cli.trace",
    "check": "shardlab.cli.check",
    "learn": "shardlab.cli.learn",
    "practice": "shardlab.cli.practice",
    "catalogue": "shardlab.cli.catalogue",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

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
        """Find the command, or name the nearest one."""
        close = get_close_matches(args[0], _COMMANDS, n=1)
        if close and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an error of ours is printed in its three parts, without a traceback."""
        try:
            return super().invoke(ctx)
        except LabError as error:
            click.echo(error_text(error), err=True)
            ctx.exit(error.exit_code)


def error_text(error: LabError) -> str:
    """Return the three parts with the code and the labels set off; click drops colour in pipes."""
    text = str(error).replace(f"[{error.code}]", click.style(f"[{error.code}]", fg="red"), 1)
    for label in ("where:", "try:"):
        text = text.replace(f"\n  {label}", f"\n  {click.style(label, bold=True)}", 1)
    return text


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardlab")
def main() -> None:
    """Design, run and check JAX sharding for meshes you do not have."""
