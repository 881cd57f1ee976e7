"""A catalogue of three small problems that are fast to judge: their results are plain values."""

from __future__ import annotations

_PROBLEM = """
format_version = 1
content_version = 1
title = "{title}"
difficulty = "easy"

[[parts]]
call = "{name}(n)"
kind = "value"
cases = 2
"""
_REFERENCE = """
def inputs(draw):
    return {{"n": int(draw.rng.integers(1, 50)) * draw.scale}}


def expected(mesh, n):
    return {right}
"""
_STATEMENT = """# {title}

## The idea

```layout
f32[8] P('x') x=2
```

## Pitfalls

- It is not `n` ([same](wrong/same.py)).

## The task

Write `{name}(n)`.
"""
_HINTS = "## Hint 1\n\nIt is more than `n`.\n\n## Hint 2\n\nIt is `{right}`.\n"
_PROBLEMS = {
    "plus-one": ("One more", "plus_one", "n + 1"),
    "twice": ("Two times", "twice", "n * 2"),
    "thrice": ("Three times", "thrice", "n * 3"),
}
_TRACKS = """
[[tracks]]
folder = "a-sums"
title = "Sums"
problems = ["plus-one"]

[[tracks]]
folder = "b-products"
title = "Products"
problems = ["twice", "thrice"]

[prerequisites]
twice = ["plus-one"]
thrice = ["twice"]
"""


def solution(slug):
    _, name, right = _PROBLEMS[slug]
    return f"def {name}(n):\n    return {right}  # the whole of it\n"


def starter(slug):
    return f"def {_PROBLEMS[slug][1]}(n):\n    raise NotImplementedError\n"


def wrong(slug):
    return f"def {_PROBLEMS[slug][1]}(n):\n    return n\n"


def write_catalogue(folder):
    """Write the catalogue into a folder and return it."""
    folder.mkdir()
    (folder / "tracks.toml").write_text(_TRACKS)
    for slug, (title, name, right) in _PROBLEMS.items():
        problem = folder / ("a-sums" if slug == "plus-one" else "b-products") / slug
        (problem / "wrong").mkdir(parents=True)
        (problem / "problem.toml").write_text(_PROBLEM.format(title=title, name=name))
        (problem / "reference.py").write_text(_REFERENCE.format(right=right))
        (problem / "statement.md").write_text(_STATEMENT.format(title=title, name=name))
        (problem / "hints.md").write_text(_HINTS.format(right=right))
        (problem / "starter.py").write_text(starter(slug))
        (problem / "solution.py").write_text(solution(slug))
        (problem / "wrong" / "same.py").write_text(f"# WA: It is another.\n{wrong(slug)}")
    return folder
