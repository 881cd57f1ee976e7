"""Options and exit codes mean the same in every command."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from shardlab import __version__
from shardlab.cli import main


def list_commands(command, name=""):
    """Yield every command with its full name."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            yield from list_commands(subcommand, f"{name} {child}".strip())
    else:
        yield name, command


COMMANDS = dict(list_commands(main))
OPTIONS = [
    (name, parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter, click.Option)
]


def options_called(flag):
    return {name: parameter for name, parameter in OPTIONS if flag in parameter.opts}


@pytest.mark.parametrize("flag", ["--json", "--html", "--svg"])
def test_an_output_takes_a_file_in_every_command(flag):
    for name, option in options_called(flag).items():
        assert (option.is_flag, option.metavar) == (False, "FILE"), name
        assert "FILE, or - for standard output" in option.help, name


def test_json_is_in_every_command_that_prints_a_record():
    assert set(options_called("--json")) == {
        *("layout", "plan", "advise", "reshard", "trace", "autoshard", "check", "launch"),
        *("practice list", "practice history", "practice run", "practice submit"),
        *("catalogue check", "catalogue mutants"),
    }


def test_the_number_of_devices_has_one_name():
    assert set(options_called("--devices")) == {
        *("plan", "advise", "run", "trace", "autoshard", "check", "record")
    }
    assert all("-n" in option.opts for option in options_called("--devices").values())
    assert options_called("--chips") == {}


@pytest.mark.parametrize(
    "flag", ["--hardware", "--catalogue", "--level", "--time-limit", "--memory-limit", "--headroom"]
)
def test_a_shared_option_has_one_description(flag):
    descriptions = {(option.help, option.metavar) for option in options_called(flag).values()}
    assert len(options_called(flag)) > 1
    assert len(descriptions) == 1


def test_help_documents_the_exit_codes_of_all_commands():
    text = CliRunner().invoke(main, ["--help"], prog_name="shardlab").stdout
    for code in ("0 ", "1 ", "2 ", "124", "130"):
        assert f"\n    {code}" in text
    assert CliRunner().invoke(main, ["--version"]).stdout == f"shardlab, version {__version__}\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " not in name])
def test_an_interrupted_command_ends_with_130(monkeypatch, name):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[name], "callback", interrupt)
    arguments = {"layout": ["8", "--mesh", "x=2"], "completion": ["bash"]}
    arguments |= {"plan": ["m"], "advise": ["m", "--devices", "8"], "learn": []}
    arguments |= {
        "serve": [],
        "worker": [],
        "rejudge": [],
        "reshard": ["m", "--mesh", "x=2", "--to-mesh", "x=4"],
    }
    done = CliRunner().invoke(main, [name, *arguments.get(name, ["a.py"])], prog_name="shardlab")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")
