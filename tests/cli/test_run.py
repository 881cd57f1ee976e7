"""`shardlab run`: as `python` would run the program, with devices that do not exist."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

COUNT = "import jax; print(jax.device_count(), jax.local_device_count())"
FLAG = "--xla_force_host_platform_device_count"


@pytest.fixture
def program(tmp_path):
    """Write a program into a folder of its own and return its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


def shardlab_run(*args, cwd=None, stdin="", **environment):
    drop = {"XLA_FLAGS", "JAX_NUM_CPU_DEVICES"}
    env = {k: v for k, v in os.environ.items() if k not in drop}
    return subprocess.run(
        [sys.executable, "-m", "shardlab", "run", *map(str, args)],
        env={**env, **environment},
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_programs_own_arguments_may_follow_two_dashes(program):
    path = program("import sys; print(sys.argv[1:])")
    done = shardlab_run("--quiet", path, "--", "--lr", ".1", "--", "-x")
    assert done.stdout == "['--lr', '.1', '--', '-x']\n"


def test_program_sees_what_python_would_show_it(program):
    path = program(
        """
        import sys, __main__, pickle
        import beside
        class Thing: pass
        print(__name__, __file__ == sys.argv[0], sys.argv[1:], sys.path[0] == beside.FOLDER)
        print(isinstance(pickle.loads(pickle.dumps(Thing())), __main__.Thing))
        print(input())
        """
    )
    program("import os; FOLDER = os.path.dirname(os.path.realpath(__file__))", "beside.py")
    done = shardlab_run("--quiet", path, "--devices", "3", "-x", stdin="from stdin\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "__main__ True ['--devices', '3', '-x'] True",
        "True",
        "from stdin",
    ]
    assert done.stderr == ""


def test_module_is_run_with_the_folder_on_the_path(program, tmp_path):
    program("import sys; print(__name__, __package__, sys.argv[1:])", "pack/tool.py")
    program("", "pack/__init__.py")
    done = shardlab_run("-q", "-m", "pack.tool", "-m", "7", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ pack ['-m', '7']\n")


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_exit_code_is_the_programs(program, ending, code, said):
    done = shardlab_run("-q", program(f"import sys\n{ending}"))
    assert done.returncode == code
    assert said in done.stderr


def test_traceback_begins_in_the_program_and_has_no_frames_of_ours(program):
    path = program(
        """
        import jax, jax.numpy as jnp
        def broken(x):
            return x + jnp.ones(3)
        jax.jit(broken)(jnp.ones(2))
        """
    )
    done = shardlab_run("-q", path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 5, in <module>'
    assert "in broken" in done.stderr
    assert "add got incompatible shapes" in done.stderr
    assert "src/shardlab" not in done.stderr  # a clone's own folder may have that name


def test_missing_program_is_an_error_in_three_parts(tmp_path):
    for args, what in [
        (["trian.py"], "There is no file 'trian.py'."),
        (["-m", "no.such"], "There is no module named 'no.such'."),
    ]:
        done = shardlab_run(*args, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"[program.not_found] {what}\n  where: ")
        assert "\n  try:   " in done.stderr


@pytest.mark.parametrize("devices", ["0", "-1", "two", "2.5"])
def test_bad_device_count_is_refused(devices):
    done = shardlab_run("--devices", devices, "program.py")
    assert done.returncode == 2
    assert "Invalid value for '--devices'" in done.stderr


@pytest.mark.parametrize(
    ("environment", "text", "options", "count"),
    [
        ({}, COUNT, [], 8),
        ({}, COUNT, ["--devices", "512"], 512),
        ({"XLA_FLAGS": f"{FLAG}=6"}, COUNT, [], 6),
        ({"XLA_FLAGS": f"{FLAG}=6"}, COUNT, ["-n", "3"], 3),
        ({"JAX_NUM_CPU_DEVICES": "12"}, COUNT, [], 12),
        ({}, f"import os; os.environ['XLA_FLAGS'] = '{FLAG}=16'; {COUNT}", [], 16),
        ({}, f"import jax, os; os.environ['XLA_FLAGS'] = '{FLAG}=16'; {COUNT}", [], 16),
        ({}, f"import jax; jax.config.update('jax_num_cpu_devices', 4); {COUNT}", [], 4),
        ({}, f"import jax; jax.config.update('jax_num_cpu_devices', 4); {COUNT}", ["-n", "9"], 9),
    ],
    ids=[
        "no wish",
        "told",
        "shell flags",
        "told against shell flags",
        "shell variable",
        "flags before import",
        "flags after import",
        "config",
        "told against config",
    ],
)
def test_program_gets_the_devices_it_asks_for_unless_told(
    program, environment, text, options, count
):
    done = shardlab_run(*options, program(text), **environment)
    assert (done.returncode, done.stdout) == (0, f"{count} {count}\n"), done.stderr
    # The run itself checks at its end that the real backend has one device, and says so.
    assert done.stderr == (
        f"shardlab: simulated {count} devices on 1 CPU device; meshes: none; shard_maps: 0\n"
    )


def test_devices_cannot_be_chosen_once_they_have_been_seen(program):
    path = program(
        """
        import jax
        jax.devices()
        jax.config.update("jax_num_cpu_devices", 4)
        """
    )
    done = shardlab_run("-q", path)
    assert done.returncode == 1
    assert "jax_num_cpu_devices config should be updated before backends are" in done.stderr


def test_closing_line_tells_meshes_and_shard_maps(program):
    path = program(
        """
        import jax, jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        flat = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
        mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        x = jax.device_put(jnp.arange(8.0), NamedSharding(flat, P("i")))
        f = jax.jit(jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()))
        print(f(x), f(x))
        """
    )
    done = shardlab_run(path)
    assert done.stdout == "[ 4.  6.  8. 10.] [ 4.  6.  8. 10.]\n"
    assert done.stderr == (
        "shardlab: simulated 8 devices on 1 CPU device; "
        "meshes: i=8; data=2,model=4; shard_maps: 1\n"
    )


def test_explicit_axes_are_explained_below_jaxs_own_message(program):
    path = program(
        """
        import jax, jax.numpy as jnp
        from jax.sharding import PartitionSpec as P
        jax.set_mesh(jax.make_mesh((4, 2), ("data", "model")))
        x = jax.device_put(jnp.ones((8, 16)), P("data", "model"))
        x @ jax.device_put(jnp.ones((16, 8)), P("model", None))
        """
    )
    done = shardlab_run(path)
    assert done.returncode == 1
    assert "ShardingTypeError: Contracting dimensions are sharded" in done.stderr
    assert "axis_types=(jax.sharding.AxisType.Auto,) * len(names)" in done.stderr


def test_in_specs_that_do_not_fit_explicit_axes_are_explained(program):
    path = program(
        """
        import jax, jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec as P
        mesh = jax.make_mesh((8,), ("data",))
        x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P()))
        jax.shard_map(lambda y: 2 * y, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
        """
    )
    done = shardlab_run(path)
    assert done.returncode == 1
    assert "in_specs must match how the argument is already sharded" in done.stderr
    assert "axis_types=(jax.sharding.AxisType.Auto,) * len(names)" in done.stderr
    command = [sys.executable, "-m", "shardlab", "check", "--quiet", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 2
    assert "try:   leave in_specs out, reshard the argument first" in checked.stderr


EXITING = """
    import atexit, sys, threading, time
    from concurrent.futures import ThreadPoolExecutor
    import jax, jax.numpy as jnp

    mesh = jax.make_mesh((8,), ("x",))
    x = jax.device_put(jnp.arange(64.0), jax.NamedSharding(mesh, jax.P("x")))
    in_pool, in_thread = threading.Event(), threading.Event()

    def write(before, after, name):
        before.wait()
        print("written by the", name, len(x.addressable_shards), flush=True)
        after.set()

    class Pool:  # nobody shuts it down
        executor = ThreadPoolExecutor(2)

    threading.Thread(target=write, args=(in_pool, in_thread, "thread")).start()
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    atexit.register(lambda: print("last callback", x.sharding.num_devices))
    atexit.register(lambda: 1 / 0)
    never = atexit.register(lambda: print("unregistered"))
    atexit.unregister(never)
    atexit.register(print, "first callback")
    started = threading.Event()
    started.set()
    Pool.executor.submit(write, started, in_pool, "pool")
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(5)", 5), ("raise RuntimeError('ends')", 1)]
)
def test_program_ends_as_python_would_end_it(program, ending, code):
    done = shardlab_run("--quiet", program(textwrap.dedent(EXITING) + ending))
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == [
        "written by the pool 8",
        "written by the thread 8",
        "first callback",
        "last callback 8",
    ]
    assert "Exception ignored in atexit callback" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "program_exit" not in done.stderr


def test_a_thread_whose_join_raises_does_not_change_the_exit_code(program):
    # Orbax's threads raise in `join` what they raised; the interpreter does not call it.
    path = program(
        """
        import threading

        class Saving(threading.Thread):
            def run(self):
                print("saved", flush=True)

            def join(self, timeout=None):
                super().join(timeout)
                raise RuntimeError("raised by the thread")

        Saving().start()
        """
    )
    done = shardlab_run("--quiet", path)
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
    assert "raised by the thread" not in done.stderr
