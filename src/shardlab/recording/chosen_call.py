"""Chooses which call of a program that is given as text is recorded.

A function that the person names; otherwise the one with example arguments (`step_args` for `step`,
or `example_args`); otherwise what the text calls itself.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import MissingArguments, NothingToRecord, UnknownFunction
from shardlab.recording.record_program import ProgramCall
from shardlab.recording.script_recording import captured_call
from shardlab.simulator.script_programs import ScriptRun
from shardlab.tracing.stage import program_name

FILE_NAME = "program.py"
_USUAL_NAMES = ("step", "train_step", "main")
_MAX_LISTED = 8
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Functions = dict[str, Callable[..., Any]]


def choose_call(
    module: types.ModuleType,
    script_run: ScriptRun,
    target: str | None,
    error: BaseException | None = None,
) -> ProgramCall:
    """Return the call to record of a text that has run; `error` is what ended it.

    Raises `NothingToRecord`, `UnknownFunction` or `MissingArguments`.
    """
    functions = _own_functions(module)
    if target:
        is_called = any(program.name == target for program in script_run.programs)
        if is_called and not _has_arguments(module, target):
            return captured_call(script_run.programs, target)
        return _function_call(module, functions, target)
    name = _only_function(functions, [f for f in functions if f"{f}_args" in vars(module)])
    if name is None and hasattr(module, "example_args"):
        name = _only_function(functions, list(functions))
    if name is not None:
        return _function_call(module, functions, name)
    if script_run.programs:
        return captured_call(script_run.programs)
    if error is not None:
        raise error
    name = _only_function(functions, [f for f in functions if not _parameters(functions[f])])
    if name is not None:
        return _function_call(module, functions, name)
    raise _nothing_to_record(module, functions)


def _own_functions(module: types.ModuleType) -> Functions:
    """Return the functions that the text defines, without those that return arguments."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not isinstance(value, type)
        and getattr(value, "__module__", "") == module.__name__
    }
    return {
        name: value
        for name, value in functions.items()
        if name != "example_args" and name.removesuffix("_args") not in functions.keys() - {name}
    }


def _only_function(functions: Functions, names: Sequence[str]) -> str | None:
    """Return the one function of `names`; of several, the one that the others are parts of."""
    if len(names) > 1:
        helpers = {used for name in names for used in _used_names(functions[name]) if used != name}
        names = [name for name in names if name not in helpers]
    if len(names) == 1:
        return names[0]
    return next((name for name in _USUAL_NAMES if name in names), None)


def _used_names(function: Callable[..., Any]) -> set[str]:
    """Return the global names in a function's code, and in the functions within it."""
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    names: set[str] = set()
    for code in codes:
        if code is not None:
            names.update(code.co_names)
            codes.extend(item for item in code.co_consts if isinstance(item, types.CodeType))
    return names


def _has_arguments(module: types.ModuleType, name: str) -> bool:
    return hasattr(module, f"{name}_args") or hasattr(module, "example_args")


def _function_call(module: types.ModuleType, functions: Functions, name: str) -> ProgramCall:
    function = getattr(module, name, None)
    if not callable(function):
        match = nearest_name(name, list(functions))
        has = f"It has {_list_signatures(functions)}." if functions else "It defines no function."
        question = f"Did you mean {match!r}? " if match else ""
        raise UnknownFunction(
            f"The program has no function {name[:60]!r}. {has}",
            where=FILE_NAME,
            fix=f"{question}Name one of its functions, or leave the field Function empty: then the "
            "function with example arguments is recorded, or what the text calls itself.",
        )
    return ProgramCall(
        function=function,
        args=_example_arguments(module, name, function),
        mesh=None,
        title=program_name(function),
    )


def _example_arguments(
    module: types.ModuleType, name: str, function: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return the arguments by the rules of `shardlab trace file.py:function`."""
    for source_name in (f"{name}_args", "example_args"):
        if hasattr(module, source_name):
            source = getattr(module, source_name)
            values = source() if callable(source) else source
            return tuple(values) if isinstance(values, (tuple, list)) else (values,)
    required = _parameters(function)
    if required:
        raise MissingArguments(
            f"{name!r} needs arguments ({', '.join(required)}), and the program has none.",
            where=FILE_NAME,
            fix=f"add a line with one shape for each: {_arguments_line(name, function)}",
        )
    return ()


def _nothing_to_record(module: types.ModuleType, functions: Functions) -> NothingToRecord:
    if not functions:
        return NothingToRecord(
            "The program calls no shard_map and no jit with shardings, and defines no function.",
            where=FILE_NAME,
            fix="call jax.shard_map(...)(x) in the text, or define a function f(x) and its "
            'arguments: f_args = ("f32[8,4]",)',
        )
    having = [name for name in functions if _has_arguments(module, name)]
    if having:
        return NothingToRecord(
            f"Several functions have example arguments: {_list_signatures(functions, having)}.",
            where=FILE_NAME,
            fix=f"enter the name of one in the field Function, such as {having[-1]}.",
        )
    last = list(functions)[-1]
    return NothingToRecord(
        "The program calls no shard_map and no jit with shardings itself, and no function has "
        f"example arguments. It has {_list_signatures(functions)}.",
        where=FILE_NAME,
        fix="add a line with one shape for each argument of the function to record: "
        f"{_arguments_line(last, functions[last])}",
    )


def _list_signatures(functions: Functions, names: Sequence[str] | None = None) -> str:
    """Return such as `body(x), f(w, x)`."""
    names = list(functions) if names is None else names
    signatures = [f"{name}({', '.join(_parameters(functions[name]))})" for name in names]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(signatures[:_MAX_LISTED]) + more


def _arguments_line(name: str, function: Callable[..., Any]) -> str:
    """Return a line that gives a function arguments: `f_args = ("f32[8,4]", "f32[8,4]")`."""
    shapes = ['"f32[8,4]"'] * max(len(_parameters(function)), 1)
    return f"{name}_args = ({', '.join(shapes)}{',' * (len(shapes) == 1)})"


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a call must give; `mesh` is filled in."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in _POSITIONAL
        and parameter.default is parameter.empty
        and parameter.name != "mesh"
    ]
