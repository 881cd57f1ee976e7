"""`shardlab advise`: what it prints, its exit codes, and that its next command plans the same."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.planner.advice.advice import Advice

ARGUMENTS = [
    "llama3-8b",
    "--hardware",
    "tpu-v5p",
    "--devices",
    "64",
    "--batch",
    "128",
    "--sequence",
    "4096",
]
TREE = """\
name = "tree"

[tensors]
"layers.{0..2}.up.weight" = "bf16[6400,1600]"
"layers.{0..2}.down.weight" = "bf16[1600,6400]"
"""


def run(*arguments):
    return CliRunner().invoke(main, ["advise", *arguments])


def test_it_prints_the_best_the_table_the_losers_and_what_it_rests_on():
    done = run(*ARGUMENTS, "--formulas")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("best: ")
    assert "\nWhat fits, best first: by step time, a usual mesh before one up to" in done.output
    for heading in (
        "Why the others lost",
        "Formulas and figures",
        "What to run next",
    ):
        assert f"\n{heading}\n" in done.output
    assert "link_bandwidth 90 GB/s one way per link: JAX scaling book" in done.output
    lines = done.output.splitlines()
    command = lines.pop(lines.index("What to run next") + 1)
    assert all(len(line) <= 100 for line in lines)
    assert command.startswith("  shardlab plan llama3-8b --mesh ")  # not folded, to be copied


@pytest.mark.parametrize(
    "arguments",
    [
        ARGUMENTS,
        ["mixtral-8x7b", "--hardware", "h100", "--devices", "32", "--batch", "64",
         "--sequence", "512", "--optimizer", "muon", "--policy", "mixed", "--headroom", "0.2",
         "--no-pipeline"],
        ["llama3-70b", "--hardware", "h100", "--devices", "64", "--batch", "128", "--sequence",
         "8192", "--precision", "fp8"],
        ["llama3-70b", "--hardware", "h100", "--devices", "16", "--batch", "64", "--sequence",
         "8192", "--optimizer", "none"],
        ["llama3-8b", "--hardware", "h100", "--devices", "8"],
        ["llama3-70b", "--hardware", "tpu-v5e", "--devices", "16", "--batch", "32", "--sequence",
         "8192", "--optimizer", "none", "--policy", "int8", "--cache-dtype", "int8"],
    ],
)  # fmt: skip
def test_the_next_command_plans_the_same_bytes(arguments):
    advice = Advice.from_json(json.loads(run(*arguments, "--json", "-").output))
    program, *command = shlex.split(advice.command)
    assert program == "shardlab"
    done = CliRunner().invoke(main, [*command, "--json", "-"])
    assert done.exit_code == 0, done.output
    planned = json.loads(done.output)["bytes_per_device"]
    assert planned["total"] == advice.best.bytes_per_device
    assert {kind: planned[kind] for kind in advice.best.bytes_by_kind} == advice.best.bytes_by_kind


def test_top_says_how_many_meshes_are_listed():
    assert "\n   2  " not in run(*ARGUMENTS, "--top", "1").output
    assert "and 26 more meshes: --top 28" in run(*ARGUMENTS, "--top", "2").output


def test_a_margin_lets_less_fit():
    without, with_margin = (
        run("llama3-8b", "--hardware", "tpu-v5e", "--devices", "16", "--batch", "32", "--sequence",
            "4096", *margin).output
        for margin in ((), ("--activation-margin", "2"))
    )  # fmt: skip
    assert without.startswith("best: ")
    assert "might fit, with --activation-margin 1" in " ".join(with_margin.split())
    assert "might fit" not in without


def test_a_slice_names_hardware_and_devices():
    done = run("llama3-8b", "--devices", "v5p-128", "--batch", "128", "--sequence", "4096")
    assert "parameters on 64 tpu-v5p devices" in done.output


def test_a_model_in_a_file_is_ranked_by_memory(tmp_path):
    file = tmp_path / "tree.toml"
    file.write_text(TREE)
    done = run(
        str(file), "--hardware", "h100", "--devices", "4", "--batch", "8", "--sequence", "128"
    )
    assert done.exit_code == 0, done.output
    assert "What fits, least memory first" in done.output
    assert f"shardlab plan {file} --mesh" in done.output


def test_nothing_that_fits_is_exit_code_1():
    done = run(
        "llama3.1-405b",
        "--hardware",
        "h100",
        "--devices",
        "8",
        "--batch",
        "8",
        "--sequence",
        "1024",
    )
    assert done.exit_code == 1
    assert done.output.startswith("nothing fits: nearest is tensor=8, which does not fit: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama3-8b", "--devices", "8"], "Missing option '--hardware'"),
        (
            ["llama3-8b", "--hardware", "h100", "--devices", "0"],
            "--devices 0: expected a whole number from 1",
        ),
        (["llama3-8b", "--hardware", "h100", "--devices", "-8"], "--devices -8"),
        (
            ["llama3-8b", "--hardware", "h100", "--devices", "8x"],
            "--devices 8x: expected a whole",
        ),
        ([*ARGUMENTS[:-1], "1e3"], "--sequence 1e3: expected a whole number"),
        ([*ARGUMENTS, "--activation-margin", "-1"], "The activation margin is -1"),
        ([*ARGUMENTS, "--figure", "x"], "--figure x: expected NAME=VALUE"),
        ([*ARGUMENTS, "--figure", "x=1"], "Unknown figure 'x'"),
        ([*ARGUMENTS, "--figure", "link_bandwidth=nan"], "The figure 'link_bandwidth' is nan"),
        ([*ARGUMENTS, "--json", "-", "--html", "-"], "cannot both be written to standard output"),
        (["llama3-8", "--hardware", "h100", "--devices", "8"], "Unknown model 'llama3-8'"),
        (["llama3-8b", "--devices", "v5p-7"], "There is no TPU slice 'v5p-7'"),
        (
            ["llama3-8b", "--hardware", "h100", "--devices", "v5p-8"],
            "--devices v5p-8 is a slice of tpu-v5p, and --hardware is h100.",
        ),
    ],
)
def test_invalid_input_of_advise_is_reported_with_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output + done.stderr
    assert "Traceback" not in done.output


def test_pages_and_markdown_hold_the_same_table(tmp_path):
    page = tmp_path / "advice.html"
    assert run(*ARGUMENTS, "--html", str(page)).exit_code == 0
    done = run(*ARGUMENTS, "--markdown")
    first = next(line for line in done.output.splitlines() if line.startswith("| 1 |"))
    for cell in filter(None, (cell.strip(" `") for cell in first.split("|"))):
        assert cell.replace("'", "&#x27;") in page.read_text("utf-8")


def test_it_imports_neither_jax_nor_numpy():
    code = (
        "import sys; from shardlab.cli import main\n"
        f"main(['advise', *{ARGUMENTS!r}], standalone_mode=False)\n"
        "print({'jax', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_formulas_are_printed_on_request_and_the_main_assumptions_always():
    done = run(*ARGUMENTS)
    assert "Formulas and figures" not in done.output
    _, _, assumptions = done.output.partition("\nAssumptions\n")
    for text in ("step: max(", "range: ", "matmul_efficiency 0.", "overlap_loss 0.", "--formulas"):
        assert text in assumptions
    assert "link_bandwidth" in run(*ARGUMENTS, "--markdown").output  # a document is complete


def test_a_mesh_of_another_number_of_devices_is_an_invalid_size():
    done = run("llama3-8b", "--hardware", "h100", "--devices", "1024", "--mesh", "dp=2,pp=8,tp=4")
    assert done.exit_code == 2
    assert "[layout.invalid_size]" in done.output
    assert "2 * 8 * 4 = 64 devices, not 1,024" in done.output


def test_the_mesh_of_a_configuration_is_named_after_its_file(tmp_path):
    config = tmp_path / "run.yml"
    config.write_text(
        "model_name: llama3-8b\nhardware: tpu\nici_fsdp_parallelism: 64\n"
        "per_device_batch_size: 2\nmax_target_length: 4096\n"
    )
    arguments = ("--config", str(config), "--hardware", "tpu-v5p", "--devices", "64")
    output = "".join(run(*arguments).output.split())  # the path may wrap
    assert f"Themeshof{config}:".replace(" ", "") in output
    named = run(*arguments, "--mesh", "fsdp=16,tensor=4").output
    assert "The mesh you named: " in named
