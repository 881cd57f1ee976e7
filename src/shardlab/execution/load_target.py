"""Loads the function that the user names, and the arguments to trace or check it with."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardlab._text.nearest import nearest_name, unknown_name_text
from shardlab.errors import (
    InvalidArguments,
    LayoutError,
    MissingArguments,
    ProgramNotFound,
    UnknownFunction,
    UnknownMeshAxis,
)
from shardlab.execution.messages import Job
from shardlab.execution.target import Target
from shardlab.sharding.mesh import parse_mesh
from shardlab.sharding.shape import parse_array
from shardlab.sharding.spec import parse_spec
from shardlab.simulator.virtual_devices.devices import virtual_mesh


def load_target_module(target: Target) -> types.ModuleType:
    """Import the file or module of a target."""
    # Libraries that parse sys.argv when they are imported must not see the worker's arguments.
    sys.argv = [target.location]
    load = _load_file if target.kind == "file" else _load_module
    return load(target.location)


def _load_file(path: str) -> types.ModuleType:
    """Import a file as `import` would from its own folder; it is not the main program."""
    file = Path(path).resolve()
    sys.path.insert(0, str(file.parent))
    # A file may be called jax.py or json.py; modules that are loaded already must not be replaced.
    name = f"{file.stem}_program" if file.stem in sys.modules else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as `import` does: dataclasses and pickle look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> types.ModuleType:
    """Import a module, with the current folder on the path."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; one of its own imports does not
        raise ProgramNotFound(
            f"No module named {error.name!r}.",
            where=f"the program '{name}:...', in {os.getcwd()}",
            fix="check the name, run it from the folder that contains the module, or name a file: "
            "file.py:function.",
        ) from None


# Commands that take a script as well as a function.
_SCRIPT_HINTS = dict.fromkeys(
    ("check", "record", "trace"), "; without ':' the file is run as a script"
) | {"autoshard": ", and autoshard needs one: the step that takes and returns arrays"}


def find_function(module: types.ModuleType, job: Job) -> Callable[..., Any]:
    """Return the function that the target names: of the module, or of a class or object in it."""
    name = job.target.function
    function = find_attribute(module, job)
    if isinstance(function, type):
        raise UnknownFunction(
            f"{name!r} is a class ({function.__module__}.{function.__qualname__}), not a function.",
            where=job.command_line,
            fix="name a function that takes and returns arrays, or a method: Class.method.",
        )
    if not callable(function):
        raise UnknownFunction(
            f"{name!r} is {_with_article(type(function).__name__)}, not a function.",
            where=job.command_line,
            fix="name a function that takes and returns arrays.",
        )
    result: Callable[..., Any] = function
    return result


def find_attribute(module: types.ModuleType, job: Job) -> Any:
    """Return the value that the target names, of any type."""
    value: Any = module
    for part in job.target.function.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise _unknown_function(value, part, job) from None
    return value


def _unknown_function(owner: Any, name: str, job: Job) -> UnknownFunction:
    functions = [n for n, v in vars(owner).items() if callable(v) and not n.startswith("_")]
    # Functions of the file itself first: imported ones would crowd the list.
    defined = [n for n in functions if getattr(vars(owner)[n], "__module__", "") == owner.__name__]
    match = nearest_name(name, functions)
    names = ", ".join((defined or functions)[:8])
    return UnknownFunction(
        f"Unknown function {name!r}.",
        where=job.command_line,
        fix=f"Did you mean {match!r}?"
        if match
        else f"name one of its functions: {names}."
        if names
        else f"it has no functions{_SCRIPT_HINTS.get(job.command, '')}.",
    )


# ---------------------------------------------------------------------------------------- arguments


def load_arguments(
    function: Callable[..., Any], module: types.ModuleType, job: Job
) -> tuple[Any, ...]:
    """Return the arguments to call `function` with.

    They come from the value that `--args` names, from shapes on the command line, or from the
    file's own example arguments: `<function>_args` or `example_args`, a tuple or a function that
    returns one. In a tuple, text such as `f32[8,4]` stands for an array of that shape.
    """
    values, origin = _find_argument_values(function, module, job)
    args = values if isinstance(values, tuple) else (values,)
    args = tuple(jax.tree.map(lambda leaf: _apply_spec(leaf, job), arg) for arg in args)
    _check_signature(function, args, job.target.function, origin)
    return args


def _find_argument_values(
    function: Callable[..., Any], module: types.ModuleType, job: Job
) -> tuple[Any, str]:
    """Return the arguments as written, and the name of their origin for errors."""
    if job.args_from:
        return _call_source(_named_source(module, job), job.args_from, job), job.args_from
    if job.args:
        return tuple(job.args), "the command"
    short_name = job.target.function.split(".")[-1]
    for name in (f"{short_name}_args", "example_args"):
        if hasattr(module, name):
            return _call_source(getattr(module, name), name, job), name
    _require_no_parameters(function, job)
    return (), "nowhere"


def _named_source(module: types.ModuleType, job: Job) -> Any:
    """Return the value that `--args` names."""
    name = str(job.args_from)
    if hasattr(module, name):
        return getattr(module, name)
    names = [n for n, v in vars(module).items() if not n.startswith("_") and _is_source(v)]
    match = nearest_name(name, names)
    raise InvalidArguments(
        f"The file has no value named {name!r} to take arguments from.",
        where=f"--args {name}, {job.command_line}",
        fix=f"Did you mean {match!r}?"
        if match
        else f"add a function {name}() that returns a tuple of arguments.",
    )


def _is_source(value: Any) -> bool:
    """Return whether a value can be arguments, or a function that returns them."""
    is_function = callable(value) and not isinstance(value, type)
    return is_function or isinstance(value, (tuple, list))


def _call_source(source: Any, name: str, job: Job) -> Any:
    if not callable(source):
        return tuple(source) if isinstance(source, list) else source
    try:
        inspect.signature(source).bind()
    except (TypeError, ValueError) as error:
        raise InvalidArguments(
            f"{name}() must return the arguments, and cannot be called without any: {error}.",
            where=job.command_line,
            fix=f"let {name} take no parameters, or give them defaults.",
        ) from None
    values = source()
    return tuple(values) if isinstance(values, list) else values


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _require_no_parameters(function: Callable[..., Any], job: Job) -> None:
    required = [
        parameter.name
        for parameter in _list_parameters(function)
        if parameter.default is parameter.empty
        and parameter.kind in _POSITIONAL
        and parameter.name != "mesh"  # filled in with the mesh
    ]
    if not required:
        return
    name = job.target.function
    count = f"{len(required)} argument{'s' * (len(required) > 1)}"
    shapes = " ".join(["'f32[8,128]'"] * len(required))
    raise MissingArguments(
        f"{name!r} needs {count} ({', '.join(required)}), and none were given.",
        where=_source_line(function) or job.command_line,
        fix=f"give shapes ({job.command_line} {shapes}), or add a function "
        f"{name.split('.')[-1]}_args() to the file that returns a tuple, or name one with --args.",
    )


def _list_parameters(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        return []


def _check_signature(
    function: Callable[..., Any], args: tuple[Any, ...], name: str, origin: str
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    # A parameter called mesh is filled in with the mesh.
    mesh = {"mesh": None} if "mesh" in list(signature.parameters)[len(args) :] else {}
    try:
        signature.bind(*args, **mesh)
    except TypeError as error:
        raise InvalidArguments(
            f"{len(args)} argument{'s' * (len(args) != 1)} for {name}{signature}: {error}.",
            where=f"{_source_line(function) or name}, with arguments from {origin}",
            fix="give one argument for each parameter without a default, in order; a tuple is "
            "unpacked, so wrap a single tuple argument in another: ((a, b),).",
        ) from None


def _source_line(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _apply_spec(leaf: Any, job: Job) -> Any:
    """Return `f32[8,4]@data,None` as an array with that sharding; other text stays as it is."""
    if not isinstance(leaf, str) or "@" not in leaf:
        return leaf
    text, _, spec = leaf.partition("@")
    try:
        shape, dtype = parse_array(text)
        entries = parse_spec(spec).entries
    except LayoutError:
        return leaf  # a string argument of the program itself
    if job.mesh is None:
        raise InvalidArguments(
            f"{leaf!r} names mesh axes, and no mesh was given.",
            where=job.command_line,
            fix="give one with --mesh, such as --mesh data=2,model=4.",
        )
    mesh = parse_mesh(job.mesh)
    for names in parse_spec(spec).axes:
        for name in names:
            if name not in mesh.axis_names:
                raise UnknownMeshAxis(
                    unknown_name_text("mesh axis", name, mesh.axis_names),
                    where=f"{leaf!r} on the mesh {mesh}",
                    fix="use an axis of the mesh, or None to replicate the dimension.",
                )
    sharding = NamedSharding(virtual_mesh(job.mesh), PartitionSpec(*entries))
    # float64 becomes float32 unless x64 is enabled, as in every array that JAX itself creates.
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype.name), sharding=sharding)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
