"""The function that a person names in the shell, and the arguments it is looked at with."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardlab.errors import (
    InvalidArguments,
    LayoutError,
    MissingArguments,
    ProgramNotFound,
    UnknownFunction,
)
from shardlab.sharding.shape import parse_array
from shardlab.sharding.spec import parse_spec
from shardlab.simulator.virtual_devices.devices import virtual_mesh


def load_file(path: str) -> types.ModuleType:
    """Import a file as `import` would from its own folder; it is not the main program."""
    place = Path(path).resolve()
    sys.path.insert(0, str(place.parent))
    # A file may be called jax.py or json.py: those that are loaded must stay what they are.
    name = f"{place.stem}_program" if place.stem in sys.modules else place.stem
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_module(name: str) -> types.ModuleType:
    """Import a module, with the folder a person stands in on the path."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and what it imports is not
        raise ProgramNotFound(
            f"There is no module named {error.name!r}.",
            where=f"the program '{name}:...', in {os.getcwd()}",
            fix="check the name, run it from the folder that it is in, or name a file: "
            "file.py:function.",
        ) from None


def find(module: types.ModuleType, name: str, shown: str) -> Callable[..., Any]:
    """Return the function, or a function of a class or object, that `name` leads to."""
    found = find_thing(module, name, shown)
    if not callable(found):
        raise UnknownFunction(
            f"{name!r} is {_article(type(found).__name__)}, not a function.",
            where=shown,
            fix="name a function that takes and returns arrays.",
        )
    result: Callable[..., Any] = found
    return result


def find_thing(module: types.ModuleType, name: str, shown: str) -> Any:
    """Return whatever `name` leads to."""
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise _no_function(found, part, shown) from None
    return found


def _no_function(owner: Any, name: str, shown: str) -> UnknownFunction:
    functions = [n for n, v in vars(owner).items() if callable(v) and not n.startswith("_")]
    own = [n for n in functions if getattr(vars(owner)[n], "__module__", "") == owner.__name__]
    close = get_close_matches(name, functions, n=1)
    listed = ", ".join((own or functions)[:8])
    return UnknownFunction(
        f"There is no function {name!r}.",
        where=shown,
        fix=f"did you mean {close[0]!r}?"
        if close
        else f"name one of its functions: {listed}."
        if listed
        else "it has no functions; without ':' the whole script is run.",
    )


# ---------------------------------------------------------------------------------------- arguments


def arguments(
    f: Callable[..., Any],
    module: types.ModuleType,
    job: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return the arguments to look at `f` with.

    From the thing that `--args` names, from shapes, or from the file's own example arguments:
    `<function>_args` or `example_args`, a tuple or a function that returns one. In a tuple, text
    such as `f32[8,4]` stands for an array of that shape.
    """
    shown, function = job["shown"], job["function"]
    mesh = job["meshes"][0] if job["meshes"] else None
    given, origin = _given(f, module, job)
    args = given if isinstance(given, tuple) else (given,)
    args = tuple(jax.tree.map(lambda leaf: _placed(leaf, mesh, shown), arg) for arg in args)
    _check_fit(f, args, function, origin)
    return args


def _given(
    f: Callable[..., Any], module: types.ModuleType, job: Mapping[str, Any]
) -> tuple[Any, str]:
    """Return the arguments as they were given, and where they are from."""
    shown, function, name = job["shown"], job["function"], job["args_from"]
    if name:
        return _made(find_any(module, name, shown), name, shown), name
    if job["args"]:
        return tuple(job["args"]), "the command"
    for name in (f"{function.split('.')[-1]}_args", "example_args"):
        if hasattr(module, name):
            return _made(getattr(module, name), name, shown), name
    _refuse_missing(f, function, shown)
    return (), "nowhere"


def find_any(module: types.ModuleType, name: str, shown: str) -> Any:
    """Return what `--args` names."""
    if not hasattr(module, name):
        names = [n for n, v in vars(module).items() if not n.startswith("_") and _gives(v)]
        close = get_close_matches(name, names, n=1)
        raise InvalidArguments(
            f"There is nothing called {name!r} to take arguments from.",
            where=f"--args {name}, {shown}",
            fix=f"did you mean {close[0]!r}?"
            if close
            else f"add a function {name}() that returns a tuple of arguments.",
        )
    return getattr(module, name)


def _gives(value: Any) -> bool:
    """Say whether a person may have meant this as arguments, or as what returns them."""
    is_function = callable(value) and not isinstance(value, type)
    return is_function or isinstance(value, (tuple, list))


def _made(source: Any, name: str, shown: str) -> Any:
    if not callable(source):
        return tuple(source) if isinstance(source, list) else source
    try:
        inspect.signature(source).bind()
    except (TypeError, ValueError) as error:
        raise InvalidArguments(
            f"{name}() is to return the arguments, and cannot be called with none: {error}.",
            where=shown,
            fix=f"let {name} take no parameters, or give them defaults.",
        ) from None
    made = source()
    return tuple(made) if isinstance(made, list) else made


def _refuse_missing(f: Callable[..., Any], name: str, shown: str) -> None:
    needed = [
        each.name
        for each in _parameters(f)
        if each.default is each.empty and each.kind in _POSITIONAL and each.name != "mesh"
    ]
    if needed:
        n = f"{len(needed)} argument{'s' * (len(needed) > 1)}"
        shapes = " ".join(["'f32[8,128]'"] * len(needed))
        raise MissingArguments(
            f"{name!r} needs {n} ({', '.join(needed)}), and nobody gave any.",
            where=_place(f) or shown,
            fix=f"give shapes ({shown} {shapes}), or add a function {name.split('.')[-1]}_args() "
            "to the file that returns a tuple, or name one with --args.",
        )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(f: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return []


def _check_fit(f: Callable[..., Any], args: tuple[Any, ...], name: str, origin: str) -> None:
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return
    # A parameter called mesh is filled with the mesh.
    mesh = {"mesh": None} if "mesh" in list(signature.parameters)[len(args) :] else {}
    try:
        signature.bind(*args, **mesh)
    except TypeError as error:
        raise InvalidArguments(
            f"{len(args)} argument{'s' * (len(args) != 1)} for {name}{signature}: {error}.",
            where=f"{_place(f) or name}, with arguments from {origin}",
            fix="give one for each parameter without a default, in order; a tuple is taken apart, "
            "so wrap a single tuple argument in another: ((a, b),).",
        ) from None


def _place(f: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(f), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _placed(leaf: Any, mesh: str | None, shown: str) -> Any:
    """Return `f32[8,4]@data,None` as an array with that sharding; other text is read later."""
    if not isinstance(leaf, str) or "@" not in leaf:
        return leaf
    text, _, spec = leaf.partition("@")
    try:
        shape, dtype = parse_array(text)
        entries = parse_spec(spec).entries
    except LayoutError:
        return leaf  # a word that the program itself understands
    if mesh is None:
        raise InvalidArguments(
            f"{leaf!r} names mesh axes, and no mesh was given.",
            where=shown,
            fix="give one with --mesh, such as --mesh data=2,model=4.",
        )
    sharding = NamedSharding(virtual_mesh(mesh), PartitionSpec(*entries))
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype.name), sharding=sharding)


def _article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
