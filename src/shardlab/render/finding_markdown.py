"""Findings as Markdown."""

from __future__ import annotations

from shardlab.records.finding import Finding
from shardlab.render.markdown import escaped
from shardlab.render.plain import plain


def finding_markdown(found: Finding) -> str:
    """Return a finding as an item of a list."""
    lines = [f"- **{found.severity}** `{found.code}` {escaped(plain(found.what))}"]
    lines += [f"  - {escaped(plain(line.strip()))}" for line in found.shows]
    lines += [f"  - try: {escaped(plain(found.fix))}"] if found.fix else []
    return "\n".join(lines)
