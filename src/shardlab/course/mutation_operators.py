"""Mutation operators: small changes of a program, each a mistake that somebody could make.

An operator maps one node of the syntax tree to its replacements. They are written as Python text
(`-x`, `np.maximum(x, 0)`) so that a surviving mutant reads as code.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

# A function that has one of the names of the first column is replaced by each of the second.
_OTHER_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "sum": ("mean", "max", "min", "prod"),
    "mean": ("sum", "max", "min"),
    "max": ("min", "sum", "mean"),
    "min": ("max", "sum"),
    "prod": ("sum", "max"),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "argmax": ("argmin",),
    "argmin": ("argmax",),
    "any": ("all",),
    "all": ("any",),
    "psum": ("pmean", "pmax", "pmin"),
    "pmean": ("psum",),
    "pmax": ("pmin", "psum", "pmean"),
    "pmin": ("pmax",),
    "zeros": ("ones",),
    "zeros_like": ("ones_like",),
    "floor": ("ceil",),
    "ceil": ("floor",),
}
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")
# Functions that choose between their arguments or transform one: each argument alone is a mutant.
_TRANSPARENT = (
    *("maximum", "minimum", "where", "clip", "sqrt", "exp", "log", "abs", "square", "roll", "sort"),
    *("tanh", "relu", "sorted", "reversed", "round", "floor", "ceil", "flip", "cumsum", "split"),
    *("transpose", "negative", "max", "min", "sum", "psum", "pmean", "pmax", "pmin", "ppermute"),
    *("stop_gradient", "pvary", "pcast", "logsumexp", "softmax", "add", "rsqrt"),
)
_OTHER_OPERATORS: Mapping[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
    ast.Pow: ast.Mult(),
}
_OTHER_COMPARISONS: Mapping[type[ast.cmpop], tuple[ast.cmpop, ...]] = {
    ast.Lt: (ast.LtE(), ast.GtE()),
    ast.LtE: (ast.Lt(), ast.Gt()),
    ast.Gt: (ast.GtE(), ast.LtE()),
    ast.GtE: (ast.Gt(), ast.Lt()),
    ast.Eq: (ast.NotEq(), ast.LtE(), ast.GtE()),
    ast.NotEq: (ast.Eq(),),
    ast.In: (ast.NotIn(),),
    ast.NotIn: (ast.In(),),
    ast.Is: (ast.IsNot(),),
    ast.IsNot: (ast.Is(),),
}
_NAME_MUTANTS = (
    *("-{0}", "abs({0})", "0 * {0}", "{0} + 1", "{0} - 1", "2 * {0}", "{0} ** 2", "{0} // 2"),
    *("{0}[::-1]", "{0}.T", "{0}[:1]", "{0}[:-1]"),
)
# Only for programs in plain NumPy: values that a traced program has too, at a higher price.
ARRAY_NAME_MUTANTS = (
    *("np.maximum({0}, 0)", "np.sqrt(abs({0}))", "np.roll({0}, 1)", "np.sort({0})"),
    *("0 * {0} + np.mean({0})", "0 * {0} + np.ravel({0})[0]", "np.flip({0})"),
)


def expression_replacements(
    node: ast.expr, names: Sequence[str], name_mutants: Sequence[str] = ()
) -> Iterator[ast.expr]:
    """Yield what replaces an expression; `names` are the values that the function can use.

    >>> tree = ast.parse("a - b", mode="eval").body
    >>> [ast.unparse(other) for other in expression_replacements(tree, ())]
    ['a', 'b', 'a + b', 'b - a']
    """
    seen = {ast.unparse(node)}
    for other in itertools.chain.from_iterable(
        operator(node)
        for operator in (
            _replace_operation,
            _replace_constant,
            _replace_comparison,
            _replace_choice,
            _replace_call,
            _replace_reduction,
            _replace_argmax,
            _replace_spec,
            _replace_subscript,
            _replace_attribute,
        )
    ):
        if (text := ast.unparse(other)) not in seen:
            seen.add(text)
            yield other
    if isinstance(node, ast.Name) and node.id in names:
        yield from (parse(text.format(node.id)) for text in (*_NAME_MUTANTS, *name_mutants))
        yield from (ast.Name(name, ast.Load()) for name in names if name != node.id)


def parse(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def _replace_operation(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        if other := _OTHER_OPERATORS.get(type(node.op)):
            yield ast.BinOp(node.left, other, node.right)
        if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.Pow)):
            yield ast.BinOp(node.right, node.op, node.left)
        if isinstance(node.op, ast.FloorDiv):  # rounded up
            numerator = ast.UnaryOp(ast.USub(), node.left)
            quotient = ast.BinOp(numerator, ast.FloorDiv(), node.right)
            yield ast.UnaryOp(ast.USub(), quotient)


def _replace_constant(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, (int, float)):
        for other in (value + 1, value - 1, 2 * value, type(value)(0), -value):
            yield ast.Constant(other)


def _replace_comparison(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Compare):
        return
    for position, operation in enumerate(node.ops):
        for other in _OTHER_COMPARISONS.get(type(operation), ()):
            operations = [*node.ops[:position], other, *node.ops[position + 1 :]]
            yield ast.Compare(node.left, operations, node.comparators)
    yield from (ast.Constant(True), ast.Constant(False))


def _replace_choice(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        yield from node.values


def _replace_call(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Call):
        return
    name = function_name(node)
    positional = [item for item in node.args if not isinstance(item, ast.Starred)]
    if name in _TRANSPARENT:
        yield from positional
        if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value):
            yield node.func.value
    for other in _OTHER_FUNCTIONS.get(name, ()):
        yield ast.Call(_renamed(node.func, other), node.args, node.keywords)
    if len(positional) == 2 == len(node.args):
        yield ast.Call(node.func, positional[::-1], node.keywords)
    for position in range(len(node.keywords)):
        if node.keywords[position].arg not in (None, "dtype", "mesh", "strict"):
            keywords = [*node.keywords[:position], *node.keywords[position + 1 :]]
            yield ast.Call(node.func, node.args, keywords)


def _replace_reduction(node: ast.expr) -> Iterator[ast.expr]:
    """Take the first element instead of the maximum, and reduce along another dimension."""
    if not isinstance(node, ast.Call) or function_name(node) not in _REDUCTIONS:
        return
    is_method = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
    operands = [node.func.value] if isinstance(node.func, ast.Attribute) and is_method else []
    operands += node.args
    if not operands:
        return
    operand, axis = ast.unparse(operands[0]), _reduced_dim(node, is_method)
    keeps_dims = any(keyword.arg == "keepdims" for keyword in node.keywords)
    if axis is None and not node.keywords and len(operands) == 1:
        yield from (parse(f"({operand}).ravel()[{index}]") for index in (0, -1))
        return
    if axis is None:
        return
    for index in (0, -1):
        bounds = ":1" if index == 0 else "-1:"
        entry = bounds if keeps_dims else str(index)
        if axis >= 0:
            yield parse(f"({operand})[{':, ' * axis}{entry}]")
    text = ast.unparse(node)
    for old, new in ((f"axis={axis}", f"axis={axis - 1}"), (f"axis={axis}", "axis=None")):
        if old in text:
            yield parse(text.replace(old, new, 1))


def _replace_argmax(node: ast.expr) -> Iterator[ast.expr]:
    """Take the last of equal maxima instead of the first."""
    if not isinstance(node, ast.Call) or function_name(node) not in ("argmax", "argmin"):
        return
    is_method = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
    if isinstance(node.func, ast.Attribute) and is_method and not node.args:
        operand = ast.unparse(node.func.value)
    elif len(node.args) == 1 and not node.keywords and not is_method:
        operand = ast.unparse(node.args[0])
    else:
        return
    yield parse(f"len({operand}) - 1 - ({operand})[::-1].{function_name(node)}()")


def _replace_spec(node: ast.expr) -> Iterator[ast.expr]:
    """Replicate what is sharded, and shard the dimension after the one that is."""
    is_spec = isinstance(node, ast.Call) and function_name(node) in ("P", "PartitionSpec")
    if isinstance(node, ast.Call) and is_spec and node.args:
        yield ast.Call(node.func, [], [])
        yield ast.Call(node.func, [ast.Constant(None), *node.args], [])


def _reduced_dim(node: ast.Call, is_method: bool) -> int | None:
    """Return the dimension that a reduction removes, None if it is not a constant."""
    positional = node.args if is_method else node.args[1:]
    named = [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
    for value in (*named, *positional[:1]):
        try:
            axis = ast.literal_eval(value)
        except ValueError:
            return None
        return axis if isinstance(axis, int) else None
    return None


def _replace_subscript(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return
    if isinstance(node.slice, ast.Slice):
        bounds = node.slice
        for lower, upper in ((None, bounds.upper), (bounds.lower, None)):
            entry = ast.Slice(lower, upper, bounds.step)
            yield ast.Subscript(node.value, entry, ast.Load())
        yield node.value
    elif isinstance(node.slice, ast.Tuple):
        elements = node.slice.elts
        if len(elements) == 2 and not any(isinstance(item, ast.Slice) for item in elements):
            entries = ast.Tuple(elements[::-1], ast.Load())
            yield ast.Subscript(node.value, entries, ast.Load())


def _replace_attribute(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield node.value
    if isinstance(node, ast.Attribute) and node.attr == "n_devices":
        yield parse(f"{ast.unparse(node.value)}.axis_sizes[0]")
    value = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(value, ast.Attribute) and value.attr == "axis_sizes":
        mesh = ast.unparse(value.value)
        yield from (parse(f"{mesh}.n_devices"), parse(f"{mesh}.axis_sizes[-1]"))


def function_name(node: ast.Call) -> str:
    """Return the last part of the name of the function that is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _renamed(function: ast.expr, name: str) -> ast.expr:
    if isinstance(function, ast.Attribute):
        return ast.Attribute(function.value, name, ast.Load())
    return ast.Name(name, ast.Load())


def _is_module(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text in ("np", "math", "jnp", "jax", "jax.lax", "lax", "jax.numpy", "itertools")


# ------------------------------------------------------------------------------------- statements


def statement_replacements(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield what replaces a statement: nothing, or the same with a term less."""
    if isinstance(node, ast.Assign):
        yield ast.Pass()
        for call in _ASSIGN_EDITS:
            yield from call(node)
    elif isinstance(node, ast.AugAssign):
        target = parse(ast.unparse(node.target))
        yield ast.Pass()
        yield ast.Assign([node.target], node.value)
        if other := _OTHER_OPERATORS.get(type(node.op)):
            yield ast.Assign([node.target], ast.BinOp(target, other, node.value))
    elif isinstance(node, (ast.Raise, ast.Expr)):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield ast.Pass()
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield ast.Pass()


def _reverse_pair(node: ast.Assign) -> Iterator[ast.stmt]:
    """Swap the two targets of `a, b = f()`."""
    (target, *others) = node.targets
    if not others and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        yield ast.Assign([ast.Tuple(target.elts[::-1], ast.Store())], node.value)


_ASSIGN_EDITS: tuple[Callable[[ast.Assign], Iterator[ast.stmt]], ...] = (_reverse_pair,)


def condition_replacements(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what replaces the condition of an `if`: each branch alone, and the other branch."""
    yield from (ast.Constant(True), ast.Constant(False))
    if not isinstance(node, ast.Compare):
        yield ast.UnaryOp(ast.Not(), node)


def iterable_replacements(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what a loop iterates over instead: without its first or last, and reversed."""
    text = ast.unparse(node)
    for bounds in ("[1:]", "[:-1]", "[::-1]", "[:1]"):
        yield parse(f"list({text}){bounds}")
