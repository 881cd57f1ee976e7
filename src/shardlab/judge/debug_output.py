"""What `jax.debug.print` has printed in one case, device by device: the record and its text.

The text is the submission's own: it is shown, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab._text.printable import printable_lines, printable_text
from shardlab._text.units import count_text

_TRUNCATED = "... more was printed"


@dataclass(frozen=True, kw_only=True)
class DeviceOutput:
    """What one device has printed. `device` is None for a print outside of a shard_map."""

    device: int | None
    place: str  # the device's coordinate, such as data=0,model=1
    text: str
    is_truncated: bool = False

    @property
    def lines(self) -> list[str]:
        """Return the lines, safe to show."""
        lines = printable_lines(self.text).removesuffix("\n").split("\n")
        return [*lines, _TRUNCATED] if self.is_truncated else lines


@dataclass(frozen=True, kw_only=True)
class DebugOutput:
    """What all devices have printed in one case."""

    mesh: str  # on which it was printed; empty without one
    devices: tuple[DeviceOutput, ...] = ()  # in mesh order; first what was printed once for all
    n_devices: int = 0  # that printed, also those that are left out
    has_example_inputs: bool = False  # a hidden case prints with the inputs of its example
    note: str = ""  # why there is no more of it

    @property
    def n_characters(self) -> int:
        return sum(len(device.text) for device in self.devices)

    def truncate(self, n_characters: int) -> DebugOutput:
        """Return the output with at most so many characters by each device."""
        devices = (
            device
            if len(device.text) <= n_characters
            else replace(device, text=device.text[:n_characters], is_truncated=True)
            for device in self.devices
        )
        return replace(self, devices=tuple(devices))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "devices": [{**vars(device)} for device in self.devices]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DebugOutput:
        devices = tuple(DeviceOutput(**device) for device in data["devices"])
        return cls(**{**data, "devices": devices})


def debug_output_title(output: DebugOutput, case_name: str = "", case_mesh: str = "") -> str:
    """Return what the lines are: what printed them, in which case, and with which inputs.

    >>> debug_output_title(DebugOutput(mesh="rows=3", has_example_inputs=True), "x7=3", "x7=3")
    'printed by jax.debug.print (x7=3; inputs of the example on rows=3)'
    """
    inputs = ""
    if output.has_example_inputs:
        # Hidden cases draw the names of some meshes; the example has others.
        mesh = f" on {output.mesh}" if output.mesh != case_mesh else ""
        inputs = f"inputs of the example{mesh}"
    details = "; ".join(filter(None, (case_name, inputs)))
    return f"printed by jax.debug.print ({details})" if details else "printed by jax.debug.print"


def debug_output_text(output: DebugOutput) -> str:
    """Return the lines of all devices, each after its coordinate.

    Devices that have printed the same are shown once:

    >>> print(debug_output_text(DebugOutput(mesh="data=3", n_devices=3, devices=tuple(
    ...     DeviceOutput(device=i, place=f"data={i}", text=text)
    ...     for i, text in enumerate(("sum 3\\n", "sum 4\\n", "sum 3\\n"))
    ... ))))
    [data=0 and data=2] sum 3
    [data=1] sum 4
    """
    return "\n".join(_iterate_lines(output))


def _iterate_lines(output: DebugOutput) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for device in output.devices:
        # What is printed outside of a shard_map is never a group with what devices print.
        key = (*device.lines, "" if device.place else "once")
        groups.setdefault(key, []).append(printable_text(device.place))
    n_places = sum(bool(device.place) for device in output.devices)
    n_hidden = output.n_devices - len(output.devices)
    for (*lines, _), places in groups.items():
        is_everywhere = len(places) == n_places > 2 and not n_hidden
        label = f"all {n_places} devices" if is_everywhere else _places_text(places)
        yield from (f"[{label}] {line}" if label else line for line in lines)
    if n_hidden > 0:
        yield f"... and {count_text(n_hidden, 'more device')}"
    if output.note:
        yield printable_text(output.note)


def _places_text(places: Sequence[str]) -> str:
    if len(places) <= 2:
        return " and ".join(places)
    return f"{places[0]} and {count_text(len(places) - 1, 'more device')}"
