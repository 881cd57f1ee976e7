"""A formula of a page: written as a Python expression, shown on the web as MathML.

    ```math
    attention = softmax(q @ k.T / sqrt(dim)) @ v
    ```

The terminal shows the expression itself, which anybody who reads Python can read; so there is one
notation for both, and no second language to learn.
"""

from __future__ import annotations

import ast
from html import escape

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "\N{MINUS SIGN}",
    ast.Mult: "\N{DOT OPERATOR}",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "=",
    ast.Lt: "<",
    ast.LtE: "\N{LESS-THAN OR EQUAL TO}",
    ast.Gt: ">",
    ast.GtE: "\N{GREATER-THAN OR EQUAL TO}",
    ast.NotEq: "\N{NOT EQUAL TO}",
}
_GREEK = ("alpha", "beta", "epsilon", "mu", "sigma")
# A foreign catalogue must not exhaust the stack with a thousand nested parentheses.
_MAX_LETTERS = 200
# How tightly an expression binds; a weaker one inside a stronger one gets parentheses.
_SUM, _PRODUCT, _SIGN, _ATOM = range(4)


def formula_mathml(text: str) -> str:
    """Return one line of a `math` block as a MathML element. Raises `ValueError`.

    >>> formula_mathml("y = x / n")[:50]
    '<math display="block"><mrow><mi>y</mi><mo>=</mo><m'
    """
    if len(text) > _MAX_LETTERS:
        raise ValueError(f"the formula has more than {_MAX_LETTERS} letters")
    try:
        statement = ast.parse(text.strip()).body[0]
    except (SyntaxError, IndexError, RecursionError, MemoryError):
        raise ValueError(f"{text.strip()!r} is not a Python expression") from None
    if isinstance(statement, ast.Assign):
        sides = [*statement.targets, statement.value]
        body = "<mo>=</mo>".join(_render(side, _SUM) for side in sides)
    elif isinstance(statement, ast.Expr):
        body = _render(statement.value, _SUM)
    else:
        raise ValueError(f"{text.strip()!r} is a statement, not an expression")
    return f'<math display="block"><mrow>{body}</mrow></math>'


def _render(node: ast.expr, strength: int) -> str:
    """Return an expression; in parentheses if it binds weaker than its surroundings."""
    body, own_strength = _render_bare(node)
    if own_strength >= strength:
        return body
    return f"<mrow><mo>(</mo>{body}<mo>)</mo></mrow>"


def _render_bare(node: ast.expr) -> tuple[str, int]:
    match node:
        case ast.Constant(value=int() | float() as number):
            return f"<mn>{escape(str(number))}</mn>", _ATOM
        case ast.Name():
            return _render_name(node.id), _ATOM
        case ast.Attribute(attr="T"):
            return f"<msup>{_render(node.value, _ATOM)}<mi>T</mi></msup>", _ATOM
        case ast.Subscript():
            # <msub> takes two children: an index of several parts, as in x[i, j], is one of them.
            index = f"<mrow>{_render(node.slice, _SUM)}</mrow>"
            return f"<msub>{_render(node.value, _ATOM)}{index}</msub>", _ATOM
        case ast.UnaryOp(op=ast.USub()):
            return f"<mrow><mo>\N{MINUS SIGN}</mo>{_render(node.operand, _SIGN)}</mrow>", _SIGN
        case ast.BinOp():
            return _render_operation(node)
        case ast.Compare(ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            sign = escape(_COMPARISONS[type(operator)])
            return f"{_render(node.left, _SUM)}<mo>{sign}</mo>{_render(right, _SUM)}", _SUM
        case ast.Tuple():
            return "<mo>,</mo>".join(_render(item, _SUM) for item in node.elts), _SUM
        case ast.Call(func=ast.Name(), keywords=[]):
            return _render_call(node), _ATOM
    raise ValueError(f"{ast.unparse(node)!r} has no notation here")


def _render_operation(node: ast.BinOp) -> tuple[str, int]:
    match node.op:
        case ast.Div():
            top, bottom = _render(node.left, _SUM), _render(node.right, _SUM)
            return f"<mfrac><mrow>{top}</mrow><mrow>{bottom}</mrow></mfrac>", _ATOM
        case ast.Pow():
            base, power = _render(node.left, _ATOM), _render(node.right, _SUM)
            return f"<msup>{base}<mrow>{power}</mrow></msup>", _ATOM
        case ast.MatMult():
            # A thin space: a product of matrices has no sign in print.
            left, right = _render(node.left, _PRODUCT), _render(node.right, _SIGN)
            return f"{left}<mspace width='0.17em'></mspace>{right}", _PRODUCT
    if type(node.op) not in _OPERATORS:
        raise ValueError(f"{ast.unparse(node)!r} has no notation here")
    is_product = isinstance(node.op, ast.Mult)
    strength = _PRODUCT if is_product else _SUM
    # a - (b + c) needs its parentheses; a + (b + c) does not.
    right_strength = strength + 1 if isinstance(node.op, (ast.Sub, ast.Mult)) else strength
    sign = _OPERATORS[type(node.op)]
    left, right = _render(node.left, strength), _render(node.right, right_strength)
    return f"{left}<mo>{sign}</mo>{right}", strength


def _render_call(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Name)
    arguments = [_render(argument, _SUM) for argument in node.args]
    match node.func.id, node.args:
        case "sqrt", [_]:
            return f"<msqrt>{arguments[0]}</msqrt>"
        case "exp", [_]:
            return f"<msup><mi>e</mi><mrow>{arguments[0]}</mrow></msup>"
        case "sum", [ast.Name(), _]:  # sum(i, a[i])
            sign = f"<munder><mo>\N{N-ARY SUMMATION}</mo>{arguments[0]}</munder>"
            return f"<mrow>{sign}{_render(node.args[1], _PRODUCT)}</mrow>"
    inside = "<mo>,</mo>".join(arguments)
    name = f'<mi mathvariant="normal">{escape(node.func.id)}</mi>'
    return f"<mrow>{name}<mo>(</mo>{inside}<mo>)</mo></mrow>"


def _render_name(name: str) -> str:
    """Return a variable; what follows its underscore is an index, and Greek names are letters."""
    base, _, index = name.partition("_")
    letter = f"&{base};" if base in _GREEK else escape(base)
    # One letter is italic by default; longer names are words.
    variant = "" if base in _GREEK or len(base) == 1 else ' mathvariant="normal"'
    symbol = f"<mi{variant}>{letter}</mi>"
    return f"<msub>{symbol}<mi>{escape(index)}</mi></msub>" if base and index else symbol
