"""`shardlab completion`: shell completion scripts, and what they complete.

Completion runs on every press of Tab, so nothing here may load JAX or NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from shardlab.cli import COMPLETE_VARIABLE

# Names for help and completion; the planner accepts more spellings of them.
STRATEGIES = (
    "fsdp",
    "tensor",
    "expert",
    "wide-expert",
    "pipeline",
    "data-parallel",
    "zero1",
    "zero2",
    "zero3",
)
OPTIMIZERS = ("adam", "adamw", "adafactor", "sgd", "lion", "muon", "none")
REMAT_POLICIES = ("none", "selective", "dots", "full")
_USUAL_MESH_AXES = ("data", "fsdp", "tensor", "expert", "context")

_HELP = """Print a completion script for SHELL.

    It completes commands and options, and the names of presets, hardware, strategies, optimizers,
    mesh axes and problems.

    \b
    bash   eval "$(shardlab completion bash)"           in ~/.bashrc
    zsh    eval "$(shardlab completion zsh)"            in ~/.zshrc, after compinit
    fish   shardlab completion fish > ~/.config/fish/completions/shardlab.fish
    """

# click's own script reads COMP_WORDS, which bash splits at the "=" and ":" of COMP_WORDBREAKS, so
# that `--mesh data=2,fs` arrives in four words. This one passes the line itself, and the word that
# bash is going to replace. No space follows a value that ends in "=" or ",".
_BASH_SCRIPT = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response

    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORD="${COMP_WORDS[$COMP_CWORD]}" \\
%(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
            [[ $value == *= ]] && compopt -o nospace
        fi
    done

    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _BashLineComplete(BashComplete):
    """Completion for bash from the whole line, so that words may contain "="."""

    source_template = _BASH_SCRIPT

    def source(self) -> str:
        # Without click's check of the local bash: the script may be for another machine.
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        arguments = split_arg_string(line)
        # split_arg_string drops the empty word after a space.
        incomplete = "" if line.endswith((" ", "\t")) or len(arguments) < 2 else arguments.pop()
        return arguments[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        # bash replaces only the part after the last word break, and shows the rest as typed.
        _, incomplete = self.get_completion_args()
        part = os.environ.get("COMP_WORD", "")
        part = "" if part in ("=", ":") else part
        prefix = incomplete[: len(incomplete) - len(part)] if incomplete.endswith(part) else ""
        return f"{item.type},{str(item.value).removeprefix(prefix)}"


class _FishCommaComplete(FishComplete):
    """Completion for fish whose values may contain a comma, as meshes do."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )


# click looks the class up by the name of the shell, also for `_SHARDLAB_COMPLETE`.
add_completion_class(_BashLineComplete)
add_completion_class(_FishCommaComplete)
_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": _BashLineComplete,
    "zsh": ZshComplete,
    "fish": _FishCommaComplete,
}


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(list(_SHELLS)), metavar="SHELL")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    root = ctx.find_root()
    script = _SHELLS[shell](root.command, {}, "shardlab", COMPLETE_VARIABLE).source()
    click.echo(script, nl=False)


# ------------------------------------------------------------------------------------------ values

Items = list[CompletionItem]


def complete_mesh(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the axis names of a mesh: `data=4,t` to `data=4,tensor=`."""
    start, comma, last = incomplete.rpartition(",")
    used_axes = _mesh_axes(start)
    # A size cannot be guessed.
    if "=" in last:
        return []
    names = [name for name in _USUAL_MESH_AXES if name not in used_axes]
    return _matches((f"{start}{comma}{name}=" for name in names), incomplete)


def complete_mesh_axis(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete one mesh axis of --mesh, for --dcn."""
    return _matches(_axes_of_command(ctx), incomplete)


def complete_spec(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the entries of a spec with the axes of --mesh: `None,m` to `None,model`."""
    start, comma, _ = incomplete.rpartition(",")
    entries = ("None", *_axes_of_command(ctx))
    return _matches((f"{start}{comma}{entry}" for entry in entries), incomplete)


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete presets, or a path if none matches."""
    from shardlab.planner.models.presets import preset_names

    return _matches(preset_names(), incomplete) or complete_path(ctx, param, incomplete)


def complete_hardware(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete hardware names, or the path of a TOML file if none matches."""
    from shardlab.hardware.chips import hardware_names

    return _matches(hardware_names(), incomplete) or complete_path(ctx, param, incomplete)


def complete_strategy(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the parts of a strategy: `fsdp+t` to `fsdp+tensor`."""
    start, plus, _ = incomplete.rpartition("+")
    names = (name for name in STRATEGIES if name not in start.split("+"))
    return _matches((f"{start}{plus}{name}" for name in names), incomplete)


def complete_optimizer(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    return _matches(OPTIMIZERS, incomplete)


def complete_remat(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    return _matches(REMAT_POLICIES, incomplete)


def complete_problem(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the slugs of the catalogue, or a path if none matches."""
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.errors import LabError

    try:
        slugs = load_catalogue(ctx.params.get("catalogue")).slugs
    except LabError:  # a catalogue that cannot be loaded completes nothing
        slugs = ()
    return _matches(slugs, incomplete) or complete_path(ctx, param, incomplete)


def complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a path."""
    return [CompletionItem(incomplete, type="file")]


def complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a folder."""
    return [CompletionItem(incomplete, type="dir")]


def _matches(values: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


def _axes_of_command(ctx: click.Context) -> list[str]:
    """Return the axes of the --mesh that was typed before; `check` has several."""
    meshes = ctx.params.get("mesh") or ctx.params.get("meshes") or ()
    texts = (meshes,) if isinstance(meshes, str) else meshes
    return list(dict.fromkeys(name for text in texts for name in _mesh_axes(text)))


def _mesh_axes(text: str) -> list[str]:
    # Not `parse_mesh`: what is typed so far need not be a valid mesh.
    return [name for entry in text.split(",") if (name := entry.partition("=")[0].strip())]
