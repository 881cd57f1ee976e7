"""A recording as the output of a notebook cell: an anywidget if it is installed, else its page."""

from __future__ import annotations

import html
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shardlab.recording.offline_page import recording_page, viewer_script

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording

# The viewer starts on an element #recording that holds the JSON. A notebook may show several
# recordings, so each gets a document of its own: an iframe with the offline page.
_ESM = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.srcdoc = model.get("page");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = model.get("title");
  frame.style.cssText = "width:100%;height:640px;border:0";
  el.append(frame);
}
export default { render };
"""


def recording_mimebundle(recording: Recording, **options: Any) -> Any:
    """Return what Jupyter shows: the viewer, and the plain summary where HTML cannot be shown."""
    if find_spec("anywidget") is not None and viewer_script():
        bundle = recording_widget(recording)._repr_mimebundle_(**options)
        if bundle is not None:
            data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
            return {**data, "text/plain": str(recording)}, metadata
    return {"text/plain": str(recording), "text/html": recording_frame(recording)}


def recording_frame(recording: Recording) -> str:
    """Return the offline page in a frame: its style and script do not touch the notebook's own."""
    page = html.escape(recording_page(recording))
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(recording.title)}" '
        'style="width:100%;height:640px;border:0"></iframe>'
    )


def recording_widget(recording: Recording) -> Any:
    """Return the recording as an anywidget. Needs the package anywidget."""
    import anywidget
    import traitlets

    class RecordingWidget(anywidget.AnyWidget):
        """Shows one recording."""

        _esm = _ESM
        page = traitlets.Unicode().tag(sync=True)
        title = traitlets.Unicode().tag(sync=True)

    return RecordingWidget(page=recording_page(recording), title=recording.title)
