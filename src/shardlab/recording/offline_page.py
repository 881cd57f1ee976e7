"""A recording as one HTML file that needs no server and no network.

The page has the recording as JSON, the viewer's script inline, and the steps as a table, which is
what a reader without JavaScript sees.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import TYPE_CHECKING

from shardlab.recording.recording_text import recording_text

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording

_PAGE = """<!doctype html>
<!--
The script of this page contains:

{licences}
-->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="app">
<h1>{title}</h1>
<pre>{summary}</pre>
{table}
</main>
<script type="application/json" id="recording">{data}</script>
<script>{script}</script>
</body>
</html>
"""

# Of the page without its script; the viewer brings its own style.
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:0}"
    "#app{padding:1rem}"
    "table.steps{border-collapse:collapse}"
    "table.steps td,table.steps th{padding:.15rem .6rem;text-align:left;vertical-align:top}"
    "table.steps tr:nth-child(even){background:color-mix(in srgb,currentColor 6%,transparent)}"
    "pre,code{font-family:ui-monospace,monospace;white-space:pre-wrap}"
)


def recording_page(recording: Recording) -> str:
    """Return the page as text."""
    script = viewer_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No address is allowed at all: the file says what it shows, and sends nothing anywhere.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        # Two hyphens and > would end the comment.
        licences=_read_built_file("recording_page-licenses.txt").replace("--", "- -"),
        title=html.escape(recording.title),
        style=_STYLE + _read_built_file("recording_page.css"),
        summary=html.escape(recording_text(recording)),
        table=_steps_table(recording),
        data=escape_for_script(recording.to_json_text()),
        script=script,
    )


def viewer_script() -> str:
    """Return the viewer as one script that is safe inside a script element."""
    # `</script` would end the element wherever it stands, also inside a string of the program.
    return _read_built_file("recording_page.js").replace("</script", "<\\/script")


def escape_for_script(json_text: str) -> str:
    r"""Return JSON that is safe inside a script element.

    >>> escape_for_script('["</script>"]')
    '["\\u003c/script>"]'
    """
    # JSON has these characters only inside strings, where an escape means the same. U+2028 and
    # U+2029 end a line in JavaScript before ES2019.
    return (
        json_text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def _read_built_file(name: str) -> str:
    """Return a file that `npm run build` wrote into the package; empty if it is not there."""
    # By path: the package of the server is above this one, and not needed to read its files.
    path = files("shardlab") / "server" / "static" / "build" / name
    return path.read_text("utf-8") if path.is_file() else ""


def _steps_table(recording: Recording) -> str:
    rows = []
    for number, step in enumerate(recording.steps):
        written = ", ".join(
            f"{value.name or ''} {value.type}".strip()
            for value in (recording.values[i] for i in step.writes)
        )
        cells = (str(number + 1), str(step.line), step.op, written, step.code)
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("step", "line", "operation", "result", "code"))
    return (
        f'<table class="steps"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
