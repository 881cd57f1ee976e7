"""The source of a program as a tree whose nodes know their exact place in the text.

An edit replaces the text of one expression and leaves every other byte, so comments, quotes and
line breaks stay as the author wrote them. Python's own `ast` gives those positions. A concrete
syntax tree (libcst) would regenerate the same text from 15 MB of nodes that nothing here needs.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

COLLECTIVES = (
    "psum",
    "pmean",
    "pmax",
    "pmin",
    "psum_scatter",
    "all_gather",
    "all_to_all",
    "ppermute",
)
REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ProgramSource:
    """The parsed source of one file, and the part of it that one function can reach.

    Raises `SyntaxError` if the text is not Python.
    """

    def __init__(self, text: str, function: str, mesh_axes: tuple[str, ...]) -> None:
        self.text, self.mesh_axes = text, mesh_axes
        self.function = function.split(".", maxsplit=1)[0]
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._line_starts = [0]
        # Only \n, \r and \r\n end a line for Python's parser; str.splitlines knows more.
        for line in self.data.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the text of a node begins and ends, in bytes."""
        # Columns of `ast` count bytes of UTF-8, not characters.
        start = self._line_starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node, without parentheses around it."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def line_span(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the span of the lines of a statement, with indentation and line break."""
        assert statement.end_lineno is not None
        last = min(statement.end_lineno, len(self._line_starts) - 1)
        return self._line_starts[statement.lineno - 1], self._line_starts[last]

    def indentation(self, statement: ast.stmt) -> str:
        start = self._line_starts[statement.lineno - 1]
        return self.data[start : start + statement.col_offset].decode()

    def line_break(self) -> str:
        return "\r\n" if b"\r\n" in self.data else "\n"

    def owns_its_lines(self, statement: ast.stmt) -> bool:
        """Return whether nothing else is on the lines of a statement, as with a semicolon."""
        start, end = self.line_span(statement)
        first, last = self.span(statement)
        after = self.data[last:end].strip()
        return not self.data[start:first].strip() and (not after or after.startswith(b"#"))

    @functools.cached_property
    def reachable(self) -> tuple[ast.AST, ...]:
        """Return every node that the function can reach by name, in the order of the text.

        Definitions at the top of the file whose names it mentions, and what those mention. An edit
        of anything else, such as the example arguments, would change the question.
        """
        definitions: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in _bound_names(statement):
                definitions.setdefault(name, []).append(statement)
        pending, visited, names = [self.function], [], {self.function}
        while pending:
            for statement in definitions.get(pending.pop(), []):
                if statement in visited:
                    continue
                visited.append(statement)
                mentioned = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
                pending += sorted(mentioned - names)
                names |= mentioned
        visited.sort(key=lambda statement: statement.lineno)
        return tuple(node for statement in visited for node in ast.walk(statement))

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the reachable calls of functions by the last part of their name."""
        for node in self.reachable:
            if isinstance(node, ast.Call) and called_name(node) in names:
                yield node

    def enclosing_function(self, node: ast.AST) -> ast.AST | None:
        return next((item for item in self.ancestors(node) if isinstance(item, _FUNCTIONS)), None)

    def enclosing_statement(self, node: ast.AST) -> ast.stmt | None:
        return next(
            (item for item in (node, *self.ancestors(node)) if isinstance(item, ast.stmt)), None
        )

    def is_type_or_decorator(self, node: ast.AST) -> bool:
        """Return whether a node is outside of what the function computes."""
        child: ast.AST = node
        for item in self.ancestors(node):
            if isinstance(item, _SCOPES) and child not in item.body:
                return True
            if isinstance(item, ast.arguments) or (
                isinstance(item, ast.AnnAssign) and child is item.annotation
            ):
                return True
            child = item
        return False

    def lax(self, name: str) -> str:
        """Return how this file writes a function of `jax.lax`; '' if it imports neither."""
        return f"{prefix}.{name}" if (prefix := self._module_name("jax.lax")) else ""

    def numpy(self, name: str) -> str:
        """Return how this file writes a function of `jax.numpy`; '' if it imports neither."""
        return f"{prefix}.{name}" if (prefix := self._module_name("jax.numpy")) else ""

    @functools.cache  # noqa: B019  # one file is parsed for one search
    def _module_name(self, module: str) -> str:
        package, _, last = module.rpartition(".")
        names = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == module and alias.asname:
                        names.append(alias.asname)
                    elif alias.name in (module, package) and not alias.asname:
                        names.append(module)
                    elif alias.name == package and alias.asname:
                        names.append(f"{alias.asname}.{last}")
            elif isinstance(node, ast.ImportFrom) and node.module == package:
                names += [alias.asname or alias.name for alias in node.names if alias.name == last]
        return min(names, key=len, default="")


def called_name(call: ast.Call) -> str:
    """Return the last part of the name of a called function: `psum` of `jax.lax.psum(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def axis_argument(call: ast.Call) -> ast.expr | None:
    """Return the expression of the mesh axes of a collective."""
    for keyword in call.keywords:
        if keyword.arg == "axis_name":
            return keyword.value
    first = 0 if called_name(call) in ("axis_index", "axis_size") else 1
    return call.args[first] if len(call.args) > first else None


def constant_axes(axes: ast.expr | None) -> tuple[str, ...]:
    """Return the mesh axes that an expression spells out; empty if it is a variable."""
    items = axes.elts if isinstance(axes, (ast.Tuple, ast.List)) else [axes]
    names = [item.value for item in items if isinstance(item, ast.Constant)]
    return tuple(str(name) for name in names) if len(names) == len(items) else ()


def axes_text(axes: tuple[str, ...]) -> str:
    """Return mesh axes as an argument: `"data"`, or `("data", "model")`."""
    quoted = ", ".join(f'"{axis}"' for axis in axes)
    return quoted if len(axes) == 1 else f"({quoted})"


def needs_parentheses(node: ast.expr) -> bool:
    """Return whether an operand of `/` or `*` needs parentheses."""
    return isinstance(
        node, (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp, ast.Tuple)
    )


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _SCOPES):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
    # `reduce_out.defvjp(forward, backward)` belongs to `reduce_out`.
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            yield function.value.id
