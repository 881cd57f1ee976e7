"""`shardlab completion`: scripts for three shells, and the names that they complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shardlab.catalogue.tracks import load_catalogue
from shardlab.cli import main
from shardlab.cli.completion import OPTIMIZERS, REMAT_POLICIES, STRATEGIES
from shardlab.hardware.chips import hardware_names
from shardlab.planner.memory.optimizer import parse_optimizer
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.presets import preset_names
from shardlab.planner.strategies.strategy import parse_strategy


def complete(line, shell="bash"):
    """Return the completions of a command line whose last word is incomplete."""
    words = line.split(" ")
    # The variables that the script of each shell passes on.
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    if shell == "bash":
        variables = {"COMP_LINE": line, "COMP_WORD": words[-1]}
    if shell == "fish":
        variables["COMP_CWORD"] = words[-1]
    code = (
        "import sys; from shardlab.cli import main\n"
        "try: main(prog_name='shardlab')\n"
        "except SystemExit: pass\n"
        "loaded = {'jax', 'jaxlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    environment = {**os.environ, **variables, "_SHARDLAB_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def values(line):
    return [item.removeprefix("plain,") for item in complete(line) if item.startswith("plain,")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_calls_shardlab_back(shell):
    done = CliRunner().invoke(main, ["completion", shell], prog_name="shardlab")
    assert done.exit_code == 0
    assert f"_SHARDLAB_COMPLETE={shell}_complete" in done.stdout
    assert done.stderr == ""


def test_an_unknown_shell_is_rejected():
    done = CliRunner().invoke(main, ["completion", "tcsh"], prog_name="shardlab")
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shardlab pl", ["plan"]),
        ("shardlab layout 8x6 --me", ["--mesh"]),
        ("shardlab practice hi", ["hint", "history"]),
        ("shardlab layout 8x6 --mesh da", ["data="]),
        ("shardlab layout 8x6 --mesh data=2,te", ["data=2,tensor="]),
        ("shardlab layout 8x6 --mesh rows=2,x=4 --spec r", ["rows"]),
        (
            "shardlab layout 8x6 --mesh rows=2,x=4 --spec None,",
            ["None,None", "None,rows", "None,x"],
        ),
        ("shardlab trace a.py:f --mesh pod=2,data=4 --dcn ", ["pod", "data"]),
        ("shardlab plan llama3-7", ["llama3-70b"]),
        ("shardlab plan llama3-8b --strategy fsdp+te", ["fsdp+tensor"]),
        ("shardlab advise llama3-8b --optimizer ada", ["adam", "adamw", "adafactor"]),
        ("shardlab advise llama3-8b --remat f", ["full"]),
        ("shardlab learn ring-", ["ring-attention"]),
        ("shardlab catalogue check ring-", ["ring-attention"]),
        ("shardlab completion z", ["zsh"]),
    ],
)
def test_names_are_completed_without_jax_and_numpy(line, expected):
    assert values(line) == expected


def test_names_come_from_their_own_tables():
    assert values("shardlab plan ") == list(preset_names())
    assert values("shardlab trace a.py --hardware ") == list(hardware_names())
    assert values("shardlab practice start ") == list(load_catalogue().slugs)


def test_the_usual_mesh_axes_are_completed_once_each():
    assert values("shardlab plan m --mesh ") == [
        "data=",
        "fsdp=",
        "tensor=",
        "expert=",
        "context=",
    ]
    assert "data=2,data=" not in values("shardlab plan m --mesh data=2,")
    assert values("shardlab plan m --mesh data=") == []  # a size


def test_what_is_not_a_name_is_a_path():
    assert complete("shardlab plan ./mod") == ["file,./mod"]
    assert complete("shardlab check tr") == ["file,tr"]
    assert complete("shardlab plan m --json o") == ["file,o"]
    assert complete("shardlab learn --catalogue our") == ["dir,our"]


def test_problems_of_another_catalogue_are_completed(tmp_path):
    from tiny_catalogue import write_catalogue

    folder = write_catalogue(tmp_path / "problems")
    assert values(f"shardlab practice show --catalogue {folder} t") == ["twice", "thrice"]


def test_meshes_are_completed_in_zsh_and_fish():
    line = "shardlab plan m --mesh data=2,te"
    assert complete(line, "zsh") == ["plain", "data=2,tensor=", "_"]
    assert complete(line, "fish") == ["plain,data=2,tensor="]
    script = CliRunner().invoke(main, ["completion", "fish"]).stdout
    assert 'string split --max 1 ","' in script  # the comma belongs to the value


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["shardlab", "pla"], ["plan"]),
        # bash splits words at "=", and replaces what follows the last one.
        (["shardlab", "plan", "m", "--mesh", "data", "=", "2,te"], ["2,tensor="]),
        (["shardlab", "plan", "m", "--strategy", "fsdp+te"], ["fsdp+tensor"]),
    ],
)
def test_bash_itself_gets_the_word_that_it_replaces(tmp_path, words, replies):
    program = tmp_path / "shardlab"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m shardlab\n")
    program.chmod(0o755)
    script = CliRunner().invoke(main, ["completion", "bash"], prog_name="shardlab").stdout
    line = " ".join(words).replace(" = ", "=")
    quoted = " ".join(f"'{word}'" for word in words)
    code = (
        f"compopt() {{ :; }}\n{script}\n"
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        f"_shardlab_completion '{program}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == replies, done.stderr


def test_every_completed_name_is_accepted_by_the_planner():
    for name in STRATEGIES:
        parse_strategy(name)
    for name in OPTIMIZERS:
        parse_optimizer(name)
    for name in REMAT_POLICIES:
        Workload(batch=8, sequence=8, remat=name)
