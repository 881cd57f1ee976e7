"""A recording as the output of a notebook cell, and as a widget.

The output is HTML, because it is stored in the notebook. A widget is not: without its kernel
JupyterLab shows "Error displaying widget: model not found" in its place.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from shardlab.recording.offline_page import recording_page
from shardlab.recording.recording_text import recording_line, recording_text

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording

# The viewer starts on an element #recording that holds the JSON. A notebook may show several
# recordings, so each gets a document of its own: an iframe with the offline page.
_FRAME_STYLE = "width:100%;height:640px;border:0"
_ESM = f"""
function render({{ model, el }}) {{
  const frame = document.createElement("iframe");
  frame.srcdoc = model.get("page");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = model.get("title");
  frame.style.cssText = "{_FRAME_STYLE}";
  el.append(frame);
}}
export default {{ render }};
"""


def recording_mimebundle(recording: Recording) -> dict[str, str]:
    """Return what Jupyter shows: the viewer, and the plain summary where HTML cannot be shown."""
    return {"text/plain": str(recording), "text/html": recording_frame(recording)}


def recording_frame(recording: Recording) -> str:
    """Return the offline page in a frame: its style and script do not touch the notebook's own.

    Where frames are removed, as by GitHub and in a notebook that is not trusted, the summary stays.
    """
    page = html.escape(recording_page(recording))
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(recording.title)}" '
        f'style="{_FRAME_STYLE}"></iframe>'
        f"<details><summary>{html.escape(recording_line(recording))}</summary>"
        f"<pre>{html.escape(recording_text(recording))}</pre></details>"
    )


def recording_widget(recording: Recording) -> Any:
    """Return the recording as an anywidget."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A recording as a widget needs anywidget: pip install 'shardlab[notebook]'. "
            "Without it the recording itself is the output of a cell."
        ) from error

    class RecordingWidget(anywidget.AnyWidget):
        """Shows one recording."""

        _esm = _ESM
        page = traitlets.Unicode().tag(sync=True)
        title = traitlets.Unicode().tag(sync=True)

    return RecordingWidget(page=recording_page(recording), title=recording.title)
