"""Runs the cells of a prepared program one by one and records what they compute.

    python tools/public_program_driver.py PROGRAM.json RECORD.json

`tools/public_programs.py` starts this file twice: with plain Python on real host devices, and
under `shardlab run`. The same lines run in both, so every difference in the record is ours.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import io
import json
import os
import random
import re
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Larger arrays are sampled: the record of a model with a million weights stays readable.
_MAX_NUMBERS = 256
_MAX_TEXT = 20_000


def main(program_file: str, record_file: str) -> int:
    program = json.loads(Path(program_file).read_text())
    record: dict[str, Any] = {"cells": [], "finished": False}
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=program["file"], __builtins__=builtins, get_ipython=lambda: None, display=print
    )
    sys.modules["__main__"] = module
    sys.argv = [program["file"], *program["arguments"]]
    sys.path[0] = os.path.dirname(program["file"])
    # Last: a clone of an installed library must not hide it.
    sys.path.extend(program["import_paths"])
    _fix_random_seeds()
    last_values: dict[str, Any] = {}
    exit_code = 0
    for source in program["cells"]:
        cell = _run_cell(_use_own_temporary_folder(source), module)
        cell["values"] = {
            name: _describe_value(value) for name, value in _new_values(module, last_values)
        }
        record["cells"].append(cell)
        Path(record_file).write_text(json.dumps(record))
        if cell["error"] is not None and not program["continues_after_errors"]:
            exit_code = 1
            break
    record["finished"] = True
    Path(record_file).write_text(json.dumps(record))
    return exit_code


def _fix_random_seeds() -> None:
    """Seed the generators of Python and NumPy, which many programs use for their data."""
    # Importing JAX draws from NumPy's global generator, and under `shardlab run` it is imported
    # already: seeded before the import, the two runs would get different data.
    import jax  # noqa: F401
    import numpy as np

    random.seed(0)
    np.random.seed(0)
    unseeded = np.random.default_rng
    np.random.default_rng = lambda seed=None: unseeded(0 if seed is None else seed)


def _use_own_temporary_folder(source: str) -> str:
    """Replace the fixed paths in /tmp that guides save to.

    The second run would find the first one's checkpoints, which Orbax refuses to overwrite.
    """
    folder = Path("tmp").resolve()
    folder.mkdir(exist_ok=True)
    return re.sub(r"""(?<=['"])/tmp/""", f"{folder}/", source)


def _run_cell(source: str, module: types.ModuleType) -> dict[str, Any]:
    """Run one cell as a notebook does: an error ends the cell, and is part of the record."""
    output, error = io.StringIO(), None
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(source, module.__dict__["__file__"], "exec"), module.__dict__)
    except SystemExit as end:
        error = None if end.code in (None, 0) else {"type": "SystemExit", "message": str(end.code)}
    except Exception as raised:
        print(traceback.format_exc(), file=sys.stderr)
        error = {"type": type(raised).__name__, "message": _plain_text(str(raised))[:400]}
    return {
        "source": source.strip().splitlines()[0][:80] if source.strip() else "",
        "output": _plain_text(output.getvalue())[:_MAX_TEXT],
        "error": error,
        "seconds": time.perf_counter() - started,
    }


def _new_values(module: types.ModuleType, last_values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names that the last cell bound to another object.

    The objects are kept, not their ids: a new array can have the id of the one that it replaces.
    """
    for name, value in list(module.__dict__.items()):
        if name.startswith("_") or isinstance(value, (types.ModuleType, type)):
            continue
        if name not in last_values or last_values[name] is not value:
            last_values[name] = value
            yield name, value


def _describe_value(value: Any) -> Any:
    """Return the arrays of a pytree or of an NNX module as JSON."""
    import jax
    import numpy as np

    if callable(value) and not hasattr(value, "__dict__"):
        return None
    try:
        leaves = jax.tree_util.tree_flatten_with_path(_pytree_of(value))[0]
    except Exception:  # an object whose flattening needs a context that is gone
        return None
    description = {}
    for path, leaf in leaves[:400]:
        if isinstance(leaf, (jax.Array, np.ndarray, np.number, bool, int, float)):
            description[jax.tree_util.keystr(path)] = _describe_leaf(leaf)
    return description or None


def _pytree_of(value: Any) -> Any:
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(value, nnx.Module):
        return nnx.state(value)
    return value


def _describe_leaf(leaf: Any) -> dict[str, Any]:
    import jax
    import numpy as np

    try:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            numbers = np.asarray(jax.random.key_data(leaf))
        else:
            numbers = np.asarray(leaf)
    except Exception as error:  # a donated buffer, for instance, in both runs
        return {"unreadable": type(error).__name__}
    description = {"type": str(numbers.dtype), "shape": list(numbers.shape), **_sample(numbers)}
    if isinstance(leaf, jax.Array):
        description["sharding"] = _describe_sharding(leaf.sharding)
        description["committed"] = bool(leaf.committed)
    return description


def _sample(numbers: Any) -> dict[str, Any]:
    import numpy as np

    is_float = numbers.dtype.kind in "fc" or "float" in numbers.dtype.name
    if numbers.dtype.kind == "c":
        numbers = np.stack([numbers.real, numbers.imag])
    if not is_float:
        if numbers.dtype.kind not in "iub":
            return {}
        digest = {"digest": hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()}
        # Bytes may be quantised floats, which bf16 rounds to the neighbour on other devices.
        return (
            {**digest, **_sample(numbers.astype(np.float32))} if numbers.itemsize == 1 else digest
        )
    wide = numbers.astype(np.float64).ravel()
    step = max(1, wide.size // _MAX_NUMBERS)
    return {
        "scale": float(np.max(np.abs(wide), initial=0.0)),
        "sum": float(np.sum(wide)),
        "size": int(wide.size),
        "numbers": [float(number) for number in wide[::step]],
    }


def _describe_sharding(sharding: Any) -> Any:
    import jax

    device_ids = sorted(device.id for device in sharding.device_set)
    if isinstance(sharding, jax.sharding.NamedSharding):
        return ["NamedSharding", dict(sharding.mesh.shape), str(sharding.spec), device_ids]
    return [type(sharding).__name__, device_ids]


def _plain_text(text: str) -> str:
    """Drop what differs between any two runs: addresses."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
