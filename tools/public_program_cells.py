"""Reads the cells of a public program: a notebook, a page with code cells, or a script."""

from __future__ import annotations

import json
import re
from pathlib import Path

# A cell that begins with a magic of another language is not Python.
_FOREIGN_CELL = re.compile(r"^%%(bash|sh|html|javascript|writefile|capture)", re.MULTILINE)
_CODE_BLOCK = re.compile(
    r"^```(?:\{code-cell\}|python|py)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_CELL_OPTION = re.compile(r"^:[\w-]+:[^\n]*$|\A---\n.*?^---$", re.MULTILINE | re.DOTALL)


def read_cells(file: Path) -> list[str]:
    """Return the Python cells of a file; a script is one cell."""
    if file.suffix == ".ipynb":
        notebook = json.loads(file.read_text())
        sources = [
            "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"
        ]
    elif file.suffix == ".md":
        sources = [_CELL_OPTION.sub("", block) for block in _CODE_BLOCK.findall(file.read_text())]
    else:
        return [file.read_text()]
    return [_drop_magics(source) for source in sources if not _FOREIGN_CELL.match(source)]


def _drop_magics(source: str) -> str:
    """Replace shell and IPython lines, which plain Python cannot run, by `pass`."""
    lines = []
    continues = False
    for line in source.splitlines():
        is_magic = continues or re.match(r"\s*[!%]", line) is not None
        continues = is_magic and line.endswith("\\")
        indent = line[: len(line) - len(line.lstrip())]
        timed = re.match(r"\s*%(?:time|timeit(?: -\S+ ?\d*)*) (.*)", line)
        if timed:
            lines.append(indent + timed.group(1))
        else:
            lines.append(f"{indent}pass" if is_magic else line.removesuffix("?"))
    return "\n".join(lines)
