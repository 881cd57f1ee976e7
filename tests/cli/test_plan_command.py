"""`shardlab plan`: what it prints, its exit codes, its files, and every way it can be misused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.planner.snapshots.saved_plan import load_plan

TINY = """\
name = "tiny"

[tensors]
"embed.weight" = "bf16[96,16]"
"layers.{0..2}.up.weight" = "bf16[64,16]"
"layers.{0..2}.down.weight" = "bf16[16,64]"
"layers.{0..2}.norm.weight" = "bf16[16]"
"""
# as MaxText's sharding_dump.py writes it
MAXTEXT = {
    ".step": {
        "mesh": {"axis_names": ["fsdp", "tensor"], "shape": {"fsdp": 4, "tensor": 1}},
        "partition_spec": [],
        "shape": [],
    },
    ".params/['params']/['decoder']/['layers']/['mlp']/['wi_0']/['kernel']": {
        "mesh": {"axis_names": ["fsdp", "tensor"], "shape": {"fsdp": 4, "tensor": 1}},
        "partition_spec": [["fsdp"], None, "tensor"],
        "shape": [16, 3, 64],
    },
    ".opt_state/[0]/.mu/['params']/['decoder']/['layers']/['mlp']/['wi_0']/['kernel']": {
        "mesh": {"axis_names": ["fsdp", "tensor"], "shape": {"fsdp": 4, "tensor": 1}},
        "partition_spec": ["fsdp", None, "tensor"],
        "shape": [16, 3, 64],
    },
}
RULES = ("--rule", "(embed|up)=model,data", "--rule", "down=data,model", "--rule", ".*=")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a small model."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "named_shardings.json").write_text(json.dumps(MAXTEXT, indent=2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*args, model="tiny.toml", mesh="data=2,model=4"):
    arguments = ["plan", model, *(["--mesh", mesh] if mesh else []), *args]
    return CliRunner().invoke(main, arguments, prog_name="shardlab")


# ------------------------------------------------------------------------------------ what it says


def test_the_text_says_first_whether_it_fits_and_then_what_takes_the_room():
    done = plan(*RULES, "--optimizer", "adamw", "--hardware", "tpu-v5e")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        """\
fits: 16.1 kB of 16.0 GB on each of 8 tpu-v5e, 14.4 GB free after 10 % headroom
tiny: 7,728 parameters in 10 tensors; mesh data=2,model=4; training with adamw
activations are not counted: no batch and sequence were given

Memory per device
              dtype  per device  of 16.0 GB    all devices  unreplicated
  parameters  bf16       2.0 kB        <1 %        16.1 kB       15.5 kB
  gradients   bf16       2.0 kB        <1 %        16.1 kB       15.5 kB
  optimizer   f32       12.1 kB        <1 %        96.8 kB       92.7 kB
  · master    f32        4.0 kB        <1 %        32.3 kB       30.9 kB
  · mu        f32        4.0 kB        <1 %        32.3 kB       30.9 kB
  · nu        f32        4.0 kB        <1 %        32.3 kB       30.9 kB
  total                 16.1 kB        <1 %       129.1 kB      123.6 kB

Tensors, largest first; bytes per device
  tensor        array                   shard   parameter      total  replicas     wasted
  layers.* ×3: 13.1 kB, 81 %
  down.weight   bf16[16@data,64@model]  [8,16]  768 bytes     6.1 kB         1          -
  up.weight     bf16[64@model,16@data]  [16,8]  768 bytes     6.1 kB         1          -
  norm.weight   bf16[16]                [16]     96 bytes  768 bytes         8  672 bytes
  outside the layers: 3.1 kB, 19 %
  embed.weight  bf16[96@model,16@data]  [24,8]  384 bytes     3.1 kB         1          -
"""
    )
    assert "memory of one tpu-v5e: 16,000,000,000 bytes" in done.stdout


def test_what_does_not_fit_is_an_error_with_exit_code_1(folder):
    (folder / "chip.toml").write_text('name = "small"\nlike = "tpu-v5e"\nhbm_bytes = 8000\n')
    done = plan("--optimizer", "adamw", "--hardware", "chip.toml")
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("does not fit: ")
    assert "too much after 10 % headroom" in done.stdout.splitlines()[0]
    assert "error [plan.does_not_fit]" in done.stdout


def test_a_rule_that_the_mesh_cannot_follow_is_an_error_with_exit_code_1():
    done = plan("--rule", "up=nope", "--rule", ".*=")
    assert done.exit_code == 1
    assert "error [rule.invalid_spec]" in done.stdout


def test_all_tensors_and_the_rules_are_shown_when_asked_for():
    few = plan("--strategy", "fsdp+tensor", model="llama3-8b", mesh="fsdp=4,tensor=2").stdout
    every = plan(
        "--strategy",
        "fsdp+tensor",
        "--all",
        "--show-rules",
        model="llama3-8b",
        mesh="fsdp=4,tensor=2",
    ).stdout
    assert "2 more" in few
    assert "input_layernorm.weight" not in few
    assert "input_layernorm.weight" in every
    assert " more" not in every
    assert "Equivalent rules; the first that matches a path wins" in every
    assert "P('tensor', 'fsdp')" in every


def test_markdown_has_tables_that_a_design_document_can_hold():
    done = plan(*RULES, "--markdown")
    lines = done.stdout.splitlines()
    assert lines[0] == "**2.0 kB on each of 8 devices**"
    assert "| tensor | array | spec | shard | per device | replicas | wasted |" in lines
    assert (
        "| `up.weight` | `bf16[64@model,16@data]` | `P('model', 'data')` | `[16,8]` | 768 bytes "
        "| 1 | - |" in lines
    )
    bars = [line.count("|") - line.count("\\|") for line in lines if line.startswith("|")]
    assert set(bars) == {8}  # the totals and the tensors: no row is broken


def test_a_slice_fills_in_the_size_that_is_left_open():
    done = plan("--devices", "v5p-1024", "--strategy", "fsdp", mesh="fsdp=-1,model=4")
    assert done.stdout.startswith("fits: ")
    assert "of 96.0 GB on each of 512 tpu-v5p" in done.stdout
    assert "mesh fsdp=128,model=4" in done.stdout


def test_zero_cuts_the_states_of_what_rules_have_placed():
    done = plan("--rule", "up=model", "--rule", ".*=", "--zero", "1", "--optimizer", "adamw")
    assert done.exit_code == 0, done.output
    assert "    master, mu, nu: f32[64@model,16@data]" in done.stdout


def test_presets_are_listed_with_their_sizes():
    done = CliRunner().invoke(main, ["plan", "--list"])
    assert done.exit_code == 0
    row = next(line for line in done.stdout.splitlines() if "llama3-70b" in line)
    assert row.split()[:4] == ["llama3-70b", "70,553,706,496", "141.1", "GB"]


# ------------------------------------------------------------------------------------------- files


def test_several_outputs_are_written_at_once(folder):
    names = {"json": "a.json", "html": "a.html", "svg": "a.svg", "treemap": "t.svg"}
    done = plan(*RULES, *(x for pair in names.items() for x in (f"--{pair[0]}", pair[1])))
    assert done.exit_code == 0
    assert done.stdout.startswith("2.0 kB on each")
    assert json.loads((folder / "a.json").read_text())["format"] == "shardlab plan"
    page = (folder / "a.html").read_text()
    assert page.count("<svg") == 2
    assert "bf16[64@model,16@data]" in page
    head, _, body = page.partition("</head>")
    assert (head.count("<style>"), body.count("<style>.shardlab{")) == (1, 0)
    assert '<th scope="col">tensor</th>' in body
    assert '<th scope="row" class="c">up.weight</th>' in body
    assert '<th colspan="7" scope="rowgroup"><b>layers.* ×3' in body
    assert body.count('<div class="wide" role="region" tabindex="0" aria-label=') == 5
    assert "<th" not in re.sub(r"<th scope=|<th colspan=|<thead>", "", body)
    for name in ("a.svg", "t.svg"):
        assert ET.parse(folder / name).getroot().get("role") == "img"


def test_json_to_the_terminal_is_alone_there():
    done = plan("--json", "-")
    assert json.loads(done.stdout)["model"] == "tiny"


def test_rules_are_written_so_that_they_give_the_same_plan(folder):
    for given in (("--strategy", "fsdp+tensor"), RULES):
        first = plan(*given, "--rules-to", "rules.toml", "--json", "a.json")
        assert first.exit_code == 0, first.output
        plan("--rules", "rules.toml", "--json", "b.json")
        a, b = (json.loads((folder / f"{name}.json").read_text()) for name in "ab")
        assert [row["held"] for row in a["rows"]] == [row["held"] for row in b["rows"]]
        assert a["rules"] == b["rules"]


def test_given_rules_are_shown_with_the_tensors_that_each_took():
    done = plan("--rule", "nothing=data", *RULES, "--show-rules", "--zero", "0")
    text = done.stdout[done.stdout.index("Rules, the first that matches wins") :].partition("\n\n")[
        0
    ]
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows[0] == ["nothing", "P('data')", "0"]
    assert [int(row[-1]) for row in rows] == [0, 4, 3, 3]


def test_a_golden_file_is_the_same_to_the_byte_and_compares_as_the_same(folder):
    plan(*RULES, "--save", "a.json")
    plan(*RULES, "--save", "b.json")
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    assert (folder / "a.json").read_text().endswith("}\n")
    assert str(folder) not in (folder / "a.json").read_text()
    assert load_plan("a.json").model == "tiny"
    done = plan(*RULES, "--compare", "a.json")
    assert (done.exit_code, done.stdout) == (0, "the same: tiny on data=2,model=4\n")


def test_a_difference_is_told_with_what_moved_and_exit_code_1(folder):
    plan("--rule", "up=model", "--rule", ".*=", "--save", "a.json")
    done = plan("--rule", "up=model,data", "--rule", ".*=", "--compare", "a.json")
    assert done.exit_code == 1
    assert done.stdout == (
        """\
4 differences: tiny on data=2,model=4

Memory per device
                 before      now  difference
  ~ parameters  10.8 kB  10.1 kB  -768 bytes  -7.1 %
  ~ total       10.8 kB  10.1 kB  -768 bytes  -7.1 %

Tensors: 1 changed
                        before        now  difference
  ~ layers.*.up.weight  1.5 kB  768 bytes  -768 bytes  -50.0 %
    bf16[64@model,16] ×3 → bf16[64@model,16@data] ×3

Rules
  ~ up: P('model') → P('model', 'data')
"""
    )
    done = plan("--rule", "up=model,data", "--rule", ".*=", "--compare", "a.json", "--markdown")
    assert done.stdout.startswith(
        "**4 differences: tiny on data=2,model=4**\n\n### Memory per device"
    )
    assert (
        "| `~` `layers.*.up.weight` | 1.5 kB | 768 bytes | -768 bytes | -50.0 % "
        "| `bf16[64@model,16]` ×3 → `bf16[64@model,16@data]` ×3 |" in done.stdout
    )


def test_a_plan_may_replace_the_golden_file_that_it_is_compared_with(folder):
    plan("--rule", ".*=", "--save", "a.json")
    again = ("--strategy", "fsdp", "--save", "a.json", "--compare", "a.json", "--json", "c.json")
    assert plan(*again).exit_code == 1
    assert not json.loads((folder / "c.json").read_text())["comparison"]["same"]
    assert plan("--strategy", "fsdp", "--compare", "a.json").exit_code == 0


def test_maxtext_shardings_are_a_model_rules_and_a_golden_file():
    file = "named_shardings.json"
    done = plan("--optimizer", "adam", model=file, mesh=None)
    assert done.exit_code == 0, done.output
    assert "f32[16@fsdp,3,64]" in done.stdout
    assert "mesh fsdp=4,tensor=1" in done.stdout
    same = plan("--optimizer", "adam", "--compare", file, model=file, mesh=None)
    assert (same.exit_code, same.stdout) == (0, "the same: maxtext on fsdp=4,tensor=1\n")
    ruled = plan("--rules", file, "--compare", file, model=file, mesh="fsdp=4,tensor=1")
    assert ruled.exit_code == 0, ruled.output
    other = plan("--rule", "wi_0=None,None,fsdp", "--compare", file, model=file, mesh=None)
    assert other.exit_code == 1
    assert "wi_0/kernel: P('fsdp', None, 'tensor') → P(None, None, 'fsdp')" in other.stdout


# -------------------------------------------------------------------------------------- bad input

BAD = [
    (["--strategy", "fsdq"], "Unknown strategy 'fsdq'"),
    (["--optimizer", "adamm"], "Unknown optimizer 'adamm'"),
    (["--hardware", "tpu-v9"], "tpu-v9"),
    (["--rule", "noequals"], "--rule noequals: expected PATTERN=SPEC"),
    (["--rule", "(=data"], "plan.invalid_rules"),
    (["--rules", "missing.toml"], "missing.toml"),
    (["--rules", "tiny.toml"], "plan.invalid_rules"),
    (["--strategy", "fsdp", "--rule", "a=data"], "both give specs to parameters"),
    (["--rule", "a=data", "--zero", "3"], "both give specs to parameters"),
    (["--zero", "4"], "--zero"),
    (["--batch", "8"], "--batch and --sequence belong together"),
    (["--batch", "-3"], "--batch -3: expected a whole number from 1"),
    (["--batch", "0", "--sequence", "8"], "--batch 0: expected a whole number from 1"),
    (["--batch", "1e3", "--sequence", "8"], "--batch 1e3: expected a whole number from 1"),
    (["--remat", "full"], "need --batch and --sequence"),
    (["--batch", "8", "--sequence", "8", "--remat", "ful"], "Unknown remat policy 'ful'"),
    (["--headroom", "1"], "--headroom"),
    (["--headroom", "nan"], "--headroom nan: expected a share of the memory, from 0 to 1"),
    (["--param-dtype", "bf17"], "bf17"),
    (["--stack", "heads"], "heads"),
    (["--replicated-above", "big"], "big"),
    (["--devices", "0"], "--devices 0"),
    (["--devices", "v9-8"], "v9-8"),
    (["--json", "no/such/folder/a.json"], "the folder 'no/such/folder' does not exist"),
    (["--json", "."], "--json .: "),
    (["--json", "-", "--html", "-"], "cannot both be written to standard output"),
    (
        ["--compare", "missing.json"],
        "[plan.invalid_plan] The saved plan cannot be read: No such file",
    ),
    (["--compare", "tiny.toml"], "[plan.invalid_plan] The saved plan is not JSON"),
]


@pytest.mark.parametrize(("args", "message"), BAD, ids=[" ".join(args) for args, _ in BAD])
def test_invalid_input_is_reported_with_exit_code_2(args, message):
    done = plan(*args)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("mesh", [None, "", "data", "data=0", "data=-1,model=-1", "data=2,data=2"])
def test_a_mesh_that_cannot_be_read_is_reported_with_exit_code_2(mesh):
    done = plan(mesh=mesh) if mesh else plan(*([] if mesh is None else ["--mesh", ""]), mesh=None)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "Missing argument 'MODEL': a preset (--list"), (["llama3-8b"], "'--mesh': the")],
)
def test_a_missing_argument_is_reported_with_an_example_that_works(arguments, message):
    done = CliRunner().invoke(main, ["plan", *arguments], prog_name="shardlab")
    assert done.exit_code == 2
    assert message in done.stderr
    example = done.stderr.strip().partition("Such as: shardlab ")[2]
    assert CliRunner().invoke(main, example.split()).exit_code == 0


def test_an_unknown_model_is_reported_with_the_nearest_name():
    done = plan(model="lama3-70b")
    assert done.exit_code == 2
    assert "llama3-70b" in done.stderr


# ------------------------------------------------------------------------------- as a real process


def run(*args, before=(), **options):
    command = [*before, sys.executable, "-m", "shardlab", "plan", "tiny.toml"]
    command += ["--mesh", "data=2", *args]
    options = {"stdout": subprocess.PIPE} | options
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, **options)


def test_a_full_disk_is_reported_in_a_line():
    with open("/dev/full", "w") as full:
        done = run(stdout=full)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "standard output: No space left on device" in done.stderr
    done = run("--save", "/dev/full")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "--save /dev/full: No space left on device" in done.stderr


def test_a_closed_pipe_ends_it_quietly():
    read, write = os.pipe()
    os.close(read)
    done = run(stdout=write)
    os.close(write)
    assert done.stderr == ""


def test_the_command_loads_neither_jax_nor_numpy_nor_rich():
    code = (
        "import sys; from shardlab.cli import main\n"
        "try: main(['plan', 'llama3-70b', '--mesh', 'fsdp=64,tensor=8', '--strategy', "
        "'fsdp+tensor', '--hardware', 'tpu-v5p', '--optimizer', 'adamw', '--batch', '512', "
        "'--sequence', '4096', '--json', 'a.json', '--html', 'a.html', '--save', 'b.json'])\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'jaxlib', 'numpy', 'rich', 'flax'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_outputs_to_one_file_are_rejected_before_either_is_written(folder):
    (folder / "same").write_text("old")
    (folder / "link").symlink_to(folder / "same")
    result = plan("--html", "same", "--svg", "link")
    assert result.exit_code == 2
    assert "--html and --svg cannot both be written to link." in result.output
    assert (folder / "same").read_text() == "old"


def test_a_closed_standard_output_is_no_error(folder):
    # By a shell, not in a `preexec_fn`: JAX, which other tests load, warns of any fork.
    done = run("--save", "s.json", before=("sh", "-c", 'exec "$@" >&-', "sh"))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert (folder / "s.json").exists()
