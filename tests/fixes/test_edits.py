"""Each family of edits: the text it makes of a program, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.fixes import branches, missing_collectives, specs, terms, wasted_communication
from shardlab.fixes import wrong_collectives as wrong
from shardlab.fixes.candidate_edit import unified_diff
from shardlab.fixes.hints import FixHints, hints_from_findings
from shardlab.fixes.list_edits import list_edits
from shardlab.fixes.program_source import ProgramSource

HEAD = "import jax\nimport jax.numpy as jnp\nfrom jax import lax\n"
HINTS = FixHints(axes=(("data",),), codes=frozenset(), causes=frozenset())


def source_of(body, axes=("data",)):
    return ProgramSource(HEAD + body, "step", axes)


def edited(family, body, hints=HINTS):
    """Return the texts that a family makes of a program, without the imports."""
    source = source_of(body)
    return [edit.apply(source).removeprefix(HEAD) for edit in family(source, hints)]


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        (missing_collectives.add_collective, "x.sum()", 'lax.pmean(x.sum(), "data")'),
        (missing_collectives.add_pcast, "f(x)", 'lax.pcast(f(x), "data", to="varying")'),
        (wrong.swap_sum_and_mean, 'lax.psum(x, "data")', 'lax.pmean(x, "data")'),
        (wrong.change_axes, 'lax.psum(x, "model")', 'lax.psum(x, "data")'),
        (wrong.remove_collective, '2 * lax.psum(x + 1, "data")', "2 * (x + 1)"),
        (
            wrong.divide_by_axis_size,
            'lax.psum_scatter(x, "data")',
            'lax.psum_scatter(x, "data") / lax.axis_size("data")',
        ),
        (wrong.change_scale, "x / 8", 'x / lax.axis_size("data")'),
        (wrong.change_scale, "(x + 1) / jax.device_count()", "(x + 1)"),
        (wrong.turn_ring, "[(i, (i + 1) % n) for i in x]", "[((i + 1) % n, i) for i in x]"),
        (terms.move_term_out, 'lax.psum(x + b, "data")', 'lax.psum(x, "data") + b'),
        (terms.count_term_once, "x + b", 'x + b / lax.axis_size("data")'),
        (
            terms.sum_before_dividing,
            'lax.pmean(x / b, "data")',
            'lax.psum(x, "data") / lax.psum(b, "data")',
        ),
        (
            terms.reduce_before_function,
            'lax.psum(jnp.sqrt(x), "data")',
            'jnp.sqrt(lax.psum(x, "data"))',
        ),
        (terms.offset_indices, "jnp.arange(n)", 'lax.axis_index("data") * n + jnp.arange(n)'),
        (
            branches.decide_together,
            "lax.cond(x > 0, f, g, x)",
            'lax.cond(lax.pmax(x > 0, "data"), f, g, x)',
        ),
        (
            branches.select_afterwards,
            "lax.cond(x > 0, f, lambda y: -y, x)",
            "jnp.where(x > 0, f(x), (lambda y: -y)(x))",
        ),
        (specs.correct_axis_name, "lax.psum(x, 'dat')", "lax.psum(x, 'data')"),
        (specs.change_spec, 'P(("a", "b"))', 'P(("b", "a"))'),
        (specs.check_varying_axes, "f(x, check_vma=False)", "f(x)"),
    ],
)
def test_the_first_edit_of_a_family(family, before, after):
    texts = edited(family, f"def step(x, b, n):\n    return {before}\n")
    assert f"def step(x, b, n):\n    return {after}\n" in texts[:3], texts[:3]


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (missing_collectives.add_collective, 'return lax.psum(x, "data")'),
        (wrong.swap_sum_and_mean, 'return lax.pmax(x, "data")'),
        (wrong.remove_collective, 'return lax.all_gather(x, "data")'),
        (wrong.change_axes, "return lax.psum(x, AXES)"),
        (wrong.change_scale, "return x / 8.5"),
        (wrong.turn_ring, "return [(i, i + 1, i) for i in x]"),
        (terms.move_term_out, 'return lax.psum(x * b, "data")'),
        (terms.sum_before_dividing, 'return lax.pmean(x * b, "data")'),
        (terms.offset_indices, "return jnp.arange(1, n)"),
        (branches.select_afterwards, "return lax.cond(x > 0, f, g, operand=x)"),
        (specs.correct_axis_name, 'return lax.psum(x, "data")'),
        (specs.check_varying_axes, "return f(x, check_vma=True)"),
    ],
)
def test_a_family_leaves_other_code_alone(family, body):
    assert edited(family, f"def step(x, b, n):\n    {body}\n") == []


def test_a_sum_and_a_slice_become_a_reduce_scatter():
    body = (
        "def step(x):\n"
        '    full = lax.psum(x, "data")  # the sum\n'
        "    n = full.shape[1] // 4\n"
        "    return lax.dynamic_slice_in_dim(full, i * n, n, 1)\n"
    )
    (text,) = edited(wasted_communication.scatter_sum, body)
    assert 'full = lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True)  # the sum' in text
    assert text.endswith("    return full\n")


def test_a_sum_that_is_used_elsewhere_too_stays():
    body = (
        "def step(x):\n"
        '    full = lax.psum(x, "data")\n'
        "    return lax.dynamic_slice_in_dim(full, 0, 1), full.sum()\n"
    )
    assert edited(wasted_communication.scatter_sum, body) == []


def test_a_gather_of_which_only_the_own_slice_is_used_is_removed():
    body = (
        "def step(x):\n"
        '    full = lax.all_gather(x, "data", tiled=True)\n'
        "    return lax.dynamic_slice_in_dim(full, 0, 1)\n"
    )
    assert edited(wasted_communication.use_own_shard, body) == ["def step(x):\n    return x\n"]


LOOP = """def step(x):
    def turn(i, state):
        # every turn
        norm = lax.psum(VALUE, "data")  # of the input
        return state + x / norm

    return lax.fori_loop(0, 7, turn, x)
"""


def test_a_collective_moves_before_the_loop_with_its_comment():
    (text,) = edited(wasted_communication.hoist_from_loop, LOOP.replace("VALUE", "x.sum()"))
    assert text.startswith('def step(x):\n    norm = lax.psum(x.sum(), "data")  # of the input\n')
    assert "        # every turn\n        return state + x / norm\n" in text


def test_a_collective_of_what_the_loop_computes_stays_in_the_loop():
    assert edited(wasted_communication.hoist_from_loop, LOOP.replace("VALUE", "state.sum()")) == []


def test_every_byte_outside_of_the_edited_expression_stays():
    body = (
        "def step(x):  # größer\r\n"
        "    y = ('ü' and  x.sum(\r\n"
        "        0,   # rows\r\n"
        "    ) )\r\n"
        "    return (y   *2)\r\n"
    )
    source = source_of(body)
    for edit in list_edits(source, [finding("hazard.replicas_differ")], "a.py"):
        ast.parse(edit.apply(source))
        kept, last = [], 0
        for item in sorted(edit.replacements, key=lambda item: item.start):
            kept.append(source.data[last : item.start])
            last = item.end
        text = edit.apply(source).encode()
        position = 0
        for part in (*kept, source.data[last:]):
            position = text.index(part, position) + len(part)
        assert "# größer\r\n" in text.decode()
        assert "# rows\r\n" in text.decode()


def test_only_what_the_function_reaches_is_edited():
    body = (
        'def helper(x):\n    return lax.psum(x, "data")\n\n'
        "def step(x):\n    return helper(x)\n\n"
        'def other(x):\n    return lax.psum(x, "data")\n\n'
        "example_args = (1,)\n"
    )
    (text,) = edited(wrong.swap_sum_and_mean, body)
    assert text.count("pmean") == 1
    assert text.index("pmean") < text.index("def step")


def test_the_gradient_of_a_custom_function_belongs_to_the_function():
    body = (
        "@jax.custom_vjp\ndef f(x):\n    return x\n\n"
        'f.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "data"),))\n\n'
        "def step(x):\n    return f(x)\n"
    )
    assert any("lax.pmean(g" in text for text in edited(wrong.swap_sum_and_mean, body))


@pytest.mark.parametrize(
    ("head", "written"),
    [
        ("import jax", "jax.lax.pmean"),
        ("import jax as j", "j.lax.pmean"),
        ("import jax.lax", "jax.lax.pmean"),
        ("import jax.lax as L", "L.pmean"),
        ("from jax import lax as collectives", "collectives.pmean"),
    ],
)
def test_a_collective_is_written_as_the_file_imports_it(head, written):
    source = ProgramSource(f"{head}\ndef step(x):\n    return f(x)\n", "step", ("data",))
    first = next(iter(missing_collectives.add_collective(source, HINTS)))
    assert f"return {written}(f(x), " in first.apply(source)


def finding(code, cause="", line=1, **details):
    return Finding(
        code=code,
        severity="error",
        what="wrong",
        where=SourceLocation("a.py", line),
        cause=cause,
        details=details,
    )


def test_the_cause_decides_what_is_tried_first():
    body = 'def step(x, b):\n    return lax.psum(x + b, "data")\n'
    source = source_of(body)
    first = {
        cause: list_edits(source, [finding("hazard.mesh_dependent", cause)], "a.py")[0].family
        for cause in ("bias_n_times", "factor_of_n")
    }
    assert first == {"bias_n_times": "term counted n times", "factor_of_n": "pmean for psum"}


def test_the_mesh_axes_of_the_finding_come_first():
    found = [finding("hazard.mesh_dependent", mesh_axes=["model"])]
    hints = hints_from_findings(found, ("data", "model"), "a.py")
    assert hints.axes == (("model",), ("data",), ("data", "model"))
    assert hints.lines == (1,)


def test_edits_are_valid_python_and_each_is_tried_once():
    body = "def step(x):\n    a, b = f(x)\n    return {'a': a + b, 'b': (a\n        * b)}\n"
    source = source_of(body)
    texts = [
        edit.apply(source)
        for edit in list_edits(source, [finding("hazard.mesh_dependent")], "a.py")
    ]
    assert len(texts) == len(set(texts)) > 10
    for text in texts:
        ast.parse(text)
        assert text != source.text


def test_a_diff_names_files_as_git_does_and_says_that_a_line_break_is_missing():
    diff = unified_diff("a\nb", "a\nc", "pkg/a.py")
    assert diff.splitlines()[:2] == ["--- a/pkg/a.py", "+++ b/pkg/a.py"]
    assert "-b\n\\ No newline at end of file\n+c\n" in diff
