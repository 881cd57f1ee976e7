"""Runs public JAX programs on 8 real host devices and on 8 virtual ones, and compares them.

    python tools/public_programs.py FOLDER                all programs of public_programs.toml
    python tools/public_programs.py FOLDER NAME ...       some of them
    python tools/public_programs.py FOLDER --trace        also `shardlab trace` of each

FOLDER contains clones of the repositories, each in a folder with the repository's name; nothing is
downloaded. Notebook cells run one by one, as in a notebook. Compared after every cell: the names it
bound (values, dtypes, shapes, shardings, committed), its error, and at the end the exit code.
The exit code is 1 if a program differs and public_programs.toml does not give the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from public_program_cells import read_cells

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "public_programs.toml"
DRIVER = HERE / "public_program_driver.py"
DEVICES = 8
# Programs with this tolerance or more may also round int8 values to the neighbour.
BF16_TOLERANCE = 1e-2
# A cell that ends with one of these did not do its work: a package, a file or a name is missing.
# Other errors can be what a guide wants to show.
BROKEN_CELL = {"NameError", "ImportError", "ModuleNotFoundError", "FileNotFoundError"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A public program and how to run it; the fields are those of public_programs.toml."""

    name: str
    repository: str
    path: str = ""
    entry: str = ""  # Python that calls the repository's code, instead of a file of it
    arguments: list[str] = field(default_factory=list)
    # [text, replacement] pairs: fewer steps, data that is generated instead of downloaded.
    replace: list[list[str]] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)  # modules that must be installed
    ignore: list[str] = field(default_factory=list)  # names that differ between any two runs
    skip_cells: list[str] = field(default_factory=list)  # text of cells that need a network
    prelude: str = ""  # a name of [preludes]: what newer JAX has removed
    tolerance: float = 1e-4  # of the largest element; a hundred times more for bf16 networks
    reason: str = ""  # why a difference is expected


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a program."""

    exit_code: int | str
    seconds: float
    cpu_seconds: float  # on a busy machine the ratio of these says more than the wall time
    record: dict[str, Any]
    errors: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result for one program."""

    program: Program
    status: str  # equal, differs, fails (on real devices too), missing
    details: list[str]
    real_seconds: float = 0.0
    simulated_seconds: float = 0.0
    cpu_ratio: float = 0.0
    n_values: int = 0
    n_raising: int = 0  # cells that raise on real devices, which some guides want
    lead: str = ""  # what `shardlab trace` shows first


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds per run")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--json", type=Path, help="write the comparisons to a file")
    parser.add_argument("--keep", type=Path, help="folder for the records and the output")
    options = parser.parse_args()
    manifest = tomllib.loads(MANIFEST.read_text())
    programs = [Program(**entry) for entry in manifest["programs"]]
    options.preludes = manifest["preludes"]
    unknown = set(options.names) - {program.name for program in programs}
    if unknown:
        parser.error(f"public_programs.toml has no program {', '.join(sorted(unknown))}")
    comparisons = []
    for program in programs:
        if options.names and program.name not in options.names:
            continue
        comparison = compare_program(program, options)
        comparisons.append(comparison)
        print_row(comparison)
    print_summary(comparisons)
    if options.json:
        rows = [{**vars(row), "program": row.program.name} for row in comparisons]
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(row.status == "differs" and not row.program.reason for row in comparisons))


def compare_program(program: Program, options: argparse.Namespace) -> Comparison:
    missing = [name for name in program.packages if importlib.util.find_spec(name) is None]
    clone = options.folder.resolve() / program.repository
    file = clone / (program.path or f"shardlab_entry_{program.name}.py")
    if missing or not clone.is_dir() or not (program.entry or file.is_file()):
        reason = (
            f"package {', '.join(missing)}"
            if missing
            else f"no file {program.repository}/{program.path}"
        )
        return Comparison(program=program, status="missing", details=[reason])
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep / program.name if options.keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        prepared = prepare_program(program, file, folder, options.preludes)
        real = run_driver(prepared, folder, is_simulated=False, timeout=options.timeout)
        simulated = run_driver(prepared, folder, is_simulated=True, timeout=options.timeout)
        lead = trace_lead(prepared, folder, options.timeout) if options.trace else ""
    details = compare_runs(program, real, simulated)
    n_values = sum(
        len(leaves or ()) for cell in real.record["cells"] for leaves in cell["values"].values()
    )
    status = "differs" if details else "equal"
    broken = [cell["error"] for cell in real.record["cells"] if error_type(cell) in BROKEN_CELL]
    if not details and (real.exit_code != 0 or broken):
        status, details = "fails", [str(broken[0]) if broken else real.errors[-300:]]
    elif not details and n_values == 0:
        status, details = "fails", ["nothing was compared: no global name is bound to an array"]
    return Comparison(
        program=program,
        status=status,
        details=details,
        real_seconds=real.seconds,
        simulated_seconds=simulated.seconds,
        cpu_ratio=simulated.cpu_seconds / max(real.cpu_seconds, 1e-3),
        n_values=n_values,
        n_raising=sum(cell["error"] is not None for cell in real.record["cells"]),
        lead=lead,
    )


def prepare_program(program: Program, file: Path, folder: Path, preludes: dict[str, str]) -> Path:
    """Write the cells, with the replacements of the manifest, to a file for the driver."""
    cells = [program.entry] if program.entry else read_cells(file)
    for text, replacement in program.replace:
        if not any(text in cell for cell in cells):
            raise SystemExit(
                f"{program.name}: no cell contains {text!r}; adapt public_programs.toml"
            )
        cells = [cell.replace(text, replacement) for cell in cells]
    cells = [cell for cell in cells if not any(text in cell for text in program.skip_cells)]
    if program.prelude:
        cells.insert(0, preludes[program.prelude])
    prepared = folder / "program.json"
    description = {
        "file": str(file),
        "cells": cells,
        "arguments": program.arguments,
        "import_paths": [str(path) for path in import_paths(file, program)],
        "continues_after_errors": file.suffix in {".ipynb", ".md"},
    }
    prepared.write_text(json.dumps(description))
    return prepared


def import_paths(file: Path, program: Program) -> list[Path]:
    """Return the folders of the clone that its own programs import from."""
    clone = next(folder for folder in file.parents if folder.name == program.repository)
    return [clone, clone / "src", clone / "examples"]


def run_driver(prepared: Path, folder: Path, *, is_simulated: bool, timeout: float) -> Run:
    name = "simulated" if is_simulated else "real"
    record_file, work = folder / f"{name}.json", folder / f"{name}_files"
    record_file.unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)  # with --keep: checkpoints of an earlier run
    work.mkdir()
    environment = {
        **os.environ,
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
    }
    environment.pop("XLA_FLAGS", None)
    if is_simulated:
        command = [sys.executable, "-m", "shardlab", "run", "--devices", str(DEVICES)]
    else:
        command = [sys.executable]
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    started, cpu_started = time.monotonic(), cpu_seconds_of_children()
    exit_code: int | str
    try:
        done = subprocess.run(
            [*command, str(DRIVER), str(prepared), str(record_file)],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        exit_code, errors = done.returncode, done.stderr
    except subprocess.TimeoutExpired as expired:
        exit_code, errors = "timeout", (expired.stderr or b"").decode(errors="replace")
    (folder / f"{name}.stderr").write_text(errors)
    record = json.loads(record_file.read_text()) if record_file.is_file() else {"cells": []}
    return Run(
        exit_code=exit_code,
        seconds=time.monotonic() - started,
        cpu_seconds=cpu_seconds_of_children() - cpu_started,
        record=record,
        errors=errors,
    )


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------------------------- comparison


def compare_runs(program: Program, real: Run, simulated: Run) -> list[str]:
    """Return the differences, most important first: exit codes, errors, values, shardings."""
    details = []
    if real.exit_code != simulated.exit_code:
        details.append(f"exit code: real {real.exit_code}, simulated {simulated.exit_code}")
    real_cells, simulated_cells = real.record["cells"], simulated.record["cells"]
    if len(real_cells) != len(simulated_cells):
        details.append(f"cells run: real {len(real_cells)}, simulated {len(simulated_cells)}")
    for number, (a, b) in enumerate(zip(real_cells, simulated_cells, strict=False)):
        details += [f"cell {number}: {text}" for text in compare_cells(program, a, b)]
    if details and simulated.exit_code != 0:
        details.append(f"simulated: {simulated.errors.strip()[-300:]}")
    return details


def compare_cells(program: Program, real: dict[str, Any], simulated: dict[str, Any]) -> list[str]:
    details = []
    if error_type(real) != error_type(simulated):
        details.append(f"error: real {real['error']}, simulated {simulated['error']}")
    for name in real["values"]:
        if name not in program.ignore:
            leaves = (real["values"][name], simulated["values"].get(name))
            details += [f"{name}{text}" for text in compare_leaves(*leaves, program.tolerance)]
    return details


def error_type(cell: dict[str, Any]) -> str | None:
    return cell["error"] and cell["error"]["type"]


def compare_leaves(real: Any, simulated: Any, tolerance: float) -> list[str]:
    if real is None or simulated is None:
        return [] if real is simulated else [": only in one of the runs"]
    details = [f"{path}: only on real devices" for path in real if path not in simulated]
    for path, leaf in real.items():
        twin = simulated.get(path)
        if twin is None:
            continue
        for key in ("type", "shape", "digest", "sharding", "committed", "unreadable"):
            if key == "digest" and "numbers" in leaf and tolerance >= BF16_TOLERANCE:
                continue
            if leaf.get(key) != twin.get(key):
                details.append(f"{path} {key}: real {leaf.get(key)}, simulated {twin.get(key)}")
        if "numbers" in leaf and "numbers" in twin:
            details += [f"{path}: {text}" for text in compare_numbers(leaf, twin, tolerance)]
    return details


def compare_numbers(real: dict[str, Any], simulated: dict[str, Any], tolerance: float) -> list[str]:
    # Sums over eight devices and over one array round differently, relative to the largest element.
    allowed = tolerance * max(real["scale"], 1e-30) + 1e-7
    for a, b in zip(real["numbers"], simulated["numbers"], strict=False):
        if not (math.isclose(a, b, abs_tol=allowed) or (math.isnan(a) and math.isnan(b))):
            return [f"value: real {a!r}, simulated {b!r} (largest {real['scale']:.3g})"]
    return []


# --------------------------------------------------------------------------------------- trace


def trace_lead(prepared: Path, folder: Path, timeout: float) -> str:
    """Return the first line of `shardlab trace` for the program."""
    command = [
        sys.executable,
        "-m",
        "shardlab",
        "trace",
        str(DRIVER),
        "--devices",
        str(DEVICES),
        "--",
    ]
    environment = {**os.environ, "MPLBACKEND": "Agg", "KERAS_BACKEND": "jax"}
    try:
        done = subprocess.run(
            [*command, str(prepared), str(folder / "traced.json")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    (folder / "trace.txt").write_text(done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return f"exit {done.returncode}: {lines[0] if lines else done.stderr.strip()[-100:]}"


# --------------------------------------------------------------------------------------- report


def print_row(row: Comparison) -> None:
    ratio = row.simulated_seconds / row.real_seconds if row.real_seconds else 0.0
    print(
        f"{row.program.name:44} {row.status:8} {row.n_values:6} values "
        f"{row.real_seconds:7.1f} s real {row.simulated_seconds:7.1f} s simulated  {ratio:5.2f}x"
        f" (CPU {row.cpu_ratio:.2f}x)",
        flush=True,
    )
    if row.n_raising:
        print(f"    {row.n_raising} cells raise on real devices")
    if row.lead:
        print(f"    trace: {row.lead}")
    for detail in row.details[:6]:
        print(f"    {detail[:300]}")
    if len(row.details) > 6:
        print(f"    and {len(row.details) - 6} more")
    if row.status == "differs" and row.program.reason:
        print(f"    expected: {row.program.reason}")


def print_summary(comparisons: list[Comparison]) -> None:
    counts = dict.fromkeys(("equal", "differs", "fails", "missing"), 0)
    for row in comparisons:
        counts[row.status] += 1
    repositories = {row.program.repository for row in comparisons if row.status != "missing"}
    text = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{len(comparisons)} programs of {len(repositories)} repositories: {text}")
    slow = [row for row in comparisons if row.simulated_seconds > 2 * row.real_seconds > 0]
    for row in slow:
        print(f"more than twice the time of real devices: {row.program.name}")


if __name__ == "__main__":
    sys.exit(main())
