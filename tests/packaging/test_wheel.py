"""The wheel: its files, its metadata, and that it works with its declared dependencies alone.

The wheel is built and installed without network access. Nothing here imports shardlab: every test
looks at the wheel, or runs the console script of the environment that the wheel is installed in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "shardlab"
TIME_LIMIT = 600  # seconds, for a process that takes about ten: it only ends a hang

# Looked up by file name, so that moving a folder inside the package changes nothing here.
CONTENT = (
    "py.typed",
    "chips.toml",
    "llama3-70b.toml",  # a model preset
    "tracks.toml",  # the order of the course
    "problem.toml",
    "statement.md",
    "hints.md",
    "starter.py",
    "solution.py",
    "reference.py",
)

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))
total = jax.shard_map(
    lambda x: jax.lax.psum(x.sum(), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
)
print(jax.device_count(), "devices, total", total(jnp.arange(16.0)))
"""

# A user's environment has no pytest and no hypothesis, but this one, which provides the
# dependencies, does. An import of anything that the wheel does not declare must fail here too.
IMPORT_FILTER = """
import sys

UNDECLARED = frozenset({undeclared!r})


class DeclaredDependenciesOnly:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in UNDECLARED:
            raise ModuleNotFoundError(f"{{name}} is not a dependency of shardlab", name=name)


sys.meta_path.insert(0, DeclaredDependenciesOnly)
"""


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel in it."""

    folder: Path
    site_packages: Path

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the console script in an empty folder that is not the repository."""
        return run_process(self.folder / "bin" / "shardlab", *arguments, cwd=self.work_folder)

    def run_python(self, code: str) -> str:
        done = run_process(self.folder / "bin" / "python", "-c", code, cwd=self.work_folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def work_folder(self) -> Path:
        return self.folder.parent / "work"

    def find_content(self, pattern: str) -> Path:
        """Return the one installed file that a pattern such as '*/a-problem/starter.py' matches."""
        (path,) = self.site_packages.glob(f"shardlab/**/{pattern}")
        return path


def run_process(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    # PYTHONPATH would import the package from elsewhere, PIP_* would change what pip does, and
    # the others would change what JAX and shardlab do.
    foreign = ("PYTHON", "PIP_", "JAX_", "XLA_", "SHARDLAB_", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, "SHARDLAB_DATA": str(cwd / "data"), "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT,
    )


def run_pip(*arguments: object, cwd: Path) -> None:
    # --isolated ignores the user's configuration, --no-index any package registry.
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    done = run_process(*pip, *arguments, "--quiet", "--no-index", "--no-deps", cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run_pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Install the wheel into an empty environment that imports its dependencies from this one."""
    top = tmp_path_factory.mktemp("installation")
    (top / "work").mkdir()
    folder = top / "venv"
    done = run_process(sys.executable, "-m", "venv", "--without-pip", folder, cwd=top)
    assert done.returncode == 0, done.stderr
    # This comes before the dependencies, because pip would uninstall the shardlab beside them.
    run_pip("--python", folder / "bin" / "python", "install", wheel, cwd=top)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    add_dependencies(site_packages, read_metadata(wheel))
    return Installation(folder, site_packages)


def add_dependencies(site_packages: Path, wheel_metadata: Message) -> None:
    """Make the dependencies of this environment importable, and only those that are declared.

    A path in a .pth file comes after the environment's own packages, and .pth files in the folder
    it names are not read. So an editable shardlab there is not found.
    """
    allowed = {"shardlab", *map(canonicalize_name, find_dependencies(wheel_metadata))}
    undeclared = sorted(
        package
        for package, owners in metadata.packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    )
    import_filter = IMPORT_FILTER.format(undeclared=undeclared)
    (site_packages / "declared_dependencies_only.py").write_text(import_filter, "utf-8")
    folders = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    lines = ["import declared_dependencies_only", *folders]
    (site_packages / "dependencies.pth").write_text("\n".join(lines) + "\n", "utf-8")


def find_dependencies(wheel_metadata: Message) -> set[str]:
    """Return the distributions that installing the wheel would install, without its extras."""
    names: set[str] = set()
    pending = list(active_requirements(wheel_metadata.get_all("Requires-Dist", []), extras=[""]))
    while pending:
        requirement = pending.pop()
        requires = metadata.requires(requirement.name) or []
        names.add(requirement.name)
        extras = ["", *requirement.extras]
        pending += [r for r in active_requirements(requires, extras) if r.name not in names]
    return names


def active_requirements(lines: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def list_files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_contains_every_file_of_the_package_and_nothing_else(wheel):
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files = {name for name in list_files(wheel) if ".dist-info/" not in name}
    assert files == sources


@pytest.mark.parametrize("name", CONTENT)
def test_the_wheel_contains_the_content(wheel, name):
    assert [file for file in list_files(wheel) if file.endswith(f"/{name}")]


def test_the_wheel_contains_the_license_and_no_tests(wheel):
    files = list_files(wheel)
    assert [file for file in files if file.endswith(".dist-info/licenses/LICENSE")]
    assert {file.split("/")[0].split("-")[0] for file in files} == {"shardlab"}
    test_files = re.compile(r"(^|/)(tests/|conftest\.py$|test_[^/]*\.py$)")
    assert [file for file in files if test_files.search(file)] == []


def test_the_metadata_has_license_and_version(wheel):
    fields = read_metadata(wheel)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields.get_all("License-File") == ["LICENSE"]
    source = (PACKAGE / "__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert fields["Version"] == version
    assert wheel.name == f"shardlab-{version}-py3-none-any.whl"


def test_the_installed_package_is_imported_and_undeclared_packages_are_not(installation):
    imported = installation.run_python("import shardlab; print(shardlab.__file__)")
    assert Path(imported) == installation.site_packages / "shardlab" / "__init__.py"
    attempt = "import importlib.util as u\ntry: print(u.find_spec('pytest'))\n"
    assert "not a dependency" in installation.run_python(
        attempt + "except ModuleNotFoundError as error: print(error)"
    )


def test_the_installed_command_has_the_version_of_the_wheel(installation, wheel):
    done = installation.run("--version")
    assert done.returncode == 0, done.stderr
    assert read_metadata(wheel)["Version"] in done.stdout


def test_layout_runs(installation):
    done = installation.run(
        *("layout", "16x12:f32", "--spec", "data,model", "--mesh", "data=2,model=4")
    )
    assert done.returncode == 0, done.stderr
    assert "[8, 3]" in done.stdout
    assert "96 bytes" in done.stdout


def test_plan_reads_its_presets_and_hardware(installation):
    done = installation.run(
        *("plan", "llama3-8b", "--mesh", "fsdp=8", "--strategy", "fsdp", "--hardware", "tpu-v5p")
    )
    assert done.returncode == 0, done.stderr
    assert "8,030,261,248 parameters" in done.stdout
    assert "2.0 GB of 96.0 GB" in done.stdout  # 16 GB of bf16 parameters over 8 devices


def test_a_program_runs_on_simulated_devices(installation):
    program = installation.work_folder / "prog.py"
    program.write_text(PROGRAM, "utf-8")
    done = installation.run("run", "--devices", "8", program)
    assert done.returncode == 0, done.stderr
    assert "8 devices, total 120.0" in done.stdout


def test_the_judge_accepts_a_reference_solution_and_rejects_a_starter(installation):
    solution = submit_content(installation, "shard-map-psum", "solution.py")
    assert solution.returncode == 0, solution.stdout + solution.stderr
    assert "data=512" in solution.stdout  # the largest of its test meshes
    starter = submit_content(installation, "shard-map-psum", "starter.py")
    assert starter.returncode == 1, starter.stdout + starter.stderr
    assert "NotImplementedError" in starter.stdout


def submit_content(
    installation: Installation, problem: str, file: str
) -> subprocess.CompletedProcess[str]:
    """Submit a file of the installed course; the exit code is 0 only if every case is AC."""
    submission = installation.work_folder / file
    submission.write_bytes(installation.find_content(f"{problem}/{file}").read_bytes())
    return installation.run("practice", "submit", problem, submission, "--exit-status")
