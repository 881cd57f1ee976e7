"""The recording of one run: a frozen record that is saved, opened by the page, and compared."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardlab._files.atomic_write import write_atomically
from shardlab.errors import InvalidRecording
from shardlab.recording.step_records import (
    RecordedFinding,
    RecordedValue,
    RecordingFailure,
    RecordingTotals,
    Step,
    Timeline,
)
from shardlab.sharding.mesh import MeshSizes

FORMAT = "shardlab-recording"
VERSION = 2
_READABLE_VERSIONS = (1, 2)  # version 1 has the first hops of a collective, not its schedule
MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class SourceFile:
    """A file of the recorded program."""

    name: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True)
class NamedValue:
    """An argument or a result of the program."""

    name: str
    value: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Every step of a program on a virtual mesh, with the values of every device."""

    title: str
    mesh: MeshSizes
    steps: tuple[Step, ...]
    values: tuple[RecordedValue, ...]
    sources: tuple[SourceFile, ...] = ()
    inputs: tuple[NamedValue, ...] = ()
    outputs: tuple[NamedValue, ...] = ()
    hardware: str | None = None
    findings: tuple[RecordedFinding, ...] = ()
    failure: RecordingFailure | None = None
    timeline: Timeline = field(default_factory=Timeline)
    totals: RecordingTotals = field(default_factory=RecordingTotals)
    notes: tuple[str, ...] = ()
    truncated: str | None = None
    output: str = ""  # what the program printed
    # The mesh that the program builds, if it ran on another one of the same axes; else empty.
    program_mesh: MeshSizes = ()
    shardlab: str = ""
    jax: str = ""

    @property
    def n_devices(self) -> int:
        """Return the number of devices of the mesh."""
        n_devices = 1
        for _, size in self.mesh:
            n_devices *= size
        return n_devices

    def __repr__(self) -> str:
        from shardlab.recording.recording_text import recording_line

        return f"<Recording of {recording_line(self)}>"

    def __str__(self) -> str:
        from shardlab.recording.recording_text import recording_text

        return recording_text(self)

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        from shardlab.recording.notebook import recording_mimebundle

        return recording_mimebundle(self)

    def widget(self) -> Any:
        """Return the recording as an anywidget; needs `shardlab[notebook]`.

        For notebooks and dashboards that arrange widgets. As the output of a cell the recording
        itself is better: it is stored in the notebook.
        """
        from shardlab.recording.notebook import recording_widget

        return recording_widget(self)

    def to_json(self) -> dict[str, Any]:
        """Return the recording as JSON data (format `shardlab-recording`)."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "shardlab": self.shardlab,
            "jax": self.jax,
            "title": self.title,
            "mesh": [[name, size] for name, size in self.mesh],
            "hardware": self.hardware,
            "sources": [source.to_json() for source in self.sources],
            "steps": [step.to_json() for step in self.steps],
            "values": [value.to_json() for value in self.values],
            "inputs": [item.to_json() for item in self.inputs],
            "outputs": [item.to_json() for item in self.outputs],
            "findings": [finding.to_json() for finding in self.findings],
            "failure": self.failure.to_json() if self.failure else None,
            "timeline": self.timeline.to_json(),
            "totals": self.totals.to_json(),
            "notes": list(self.notes),
            "truncated": self.truncated,
            "output": self.output,
            "program_mesh": [[name, size] for name, size in self.program_mesh],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Return the recording of JSON data. Raises `InvalidRecording`."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise InvalidRecording(
                "This is not a recording.",
                fix="make one with shardlab record, or with Recording.save.",
            )
        if data.get("version") not in _READABLE_VERSIONS:
            raise InvalidRecording(
                f"The recording has version {str(data.get('version'))[:20]}; this is {VERSION}.",
                fix="record the program again with this version of shardlab.",
            )
        try:
            return cls._from_checked_json(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRecording(
                f"The recording is damaged: {type(error).__name__}: {str(error)[:100]}",
                fix="record the program again.",
            ) from None

    @classmethod
    def _from_checked_json(cls, data: Mapping[str, Any]) -> Recording:
        failure = data["failure"]
        return cls(
            title=data["title"],
            mesh=_parse_sizes(data["mesh"]),
            steps=tuple(map(Step.from_json, data["steps"])),
            values=tuple(map(RecordedValue.from_json, data["values"])),
            sources=tuple(SourceFile(**source) for source in data["sources"]),
            inputs=tuple(NamedValue(**item) for item in data["inputs"]),
            outputs=tuple(NamedValue(**item) for item in data["outputs"]),
            hardware=data["hardware"],
            findings=tuple(map(RecordedFinding.from_json, data["findings"])),
            failure=RecordingFailure(**failure) if failure else None,
            timeline=Timeline.from_json(data["timeline"]),
            totals=RecordingTotals(**data["totals"]),
            notes=tuple(data["notes"]),
            truncated=data["truncated"],
            output=str(data.get("output", "")),  # files of earlier versions have none
            program_mesh=_parse_sizes(data.get("program_mesh", ())),
            shardlab=data["shardlab"],
            jax=data["jax"],
        )

    def to_json_text(self) -> str:
        """Return the recording as one line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    def save(self, path: str | Path) -> Path:
        """Write the recording to a file, compressed if its name ends with `.gz`.

        The usual name is `name.shardlab.json.gz`.
        """
        path = Path(path)
        data = self.to_json_text().encode()
        if path.suffix == ".gz":
            # mtime=0: equal recordings are equal files.
            data = gzip.compress(data, mtime=0)
        write_atomically(path, data)
        return path

    def to_html(self) -> str:
        """Return one HTML page that shows the recording without a server or a network."""
        from shardlab.recording.offline_page import recording_page

        return recording_page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page of `to_html` to a file."""
        path = Path(path)
        write_atomically(path, self.to_html())
        return path

    def to_perfetto(self) -> dict[str, Any]:
        """Return the timeline as Chrome trace events, for ui.perfetto.dev."""
        from shardlab.recording.perfetto import perfetto_trace

        return perfetto_trace(self)


def _parse_sizes(pairs: Any) -> MeshSizes:
    return tuple((str(name), int(size)) for name, size in pairs)


def load_recording(path: str | Path) -> Recording:
    """Return a recording that `Recording.save` wrote. Raises `InvalidRecording`."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRecording(
            f"The file cannot be read: {error.strerror}.", where=str(path), fix="check the path."
        ) from None
    try:
        if data[:2] == b"\x1f\x8b":
            data = _decompress(data)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        content = json.loads(data)
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise InvalidRecording(
            f"The file is not a recording: {str(error)[:100]}",
            where=str(path),
            fix="give a file that shardlab record or Recording.save wrote.",
        ) from None
    return Recording.from_json(content)


def _decompress(data: bytes) -> bytes:
    """Return at most one byte more than the limit: a small file can expand to any size."""
    import io

    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(MAX_FILE_BYTES + 1)
