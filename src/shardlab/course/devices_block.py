"""A picture of what each device holds, step by step: a `devices` block of a page.

    ```devices
    mesh data=4
    x P('data'): [1 2 3] | [4 5 6] | [7 8 9] | [10 11 12]
    -> jnp.sum(y)
    term, partial over data: 6 | 15 | 24 | 33
    -> psum over data
    total P(): 78
    ```

A row has a cell for each device, or one cell that is the same for all. `full x: [1 2 3 4]` is the
array before it is placed, or after its shards are put together: one cell across all devices. A spec
gives the cells the colors of the mesh axes, and says which devices hold copies: these must have the
same text. A cell is empty or has blocks, separated by `;`. `@3 d` is a block that came from device
3, and `! nan` one that is wrong. What follows ` # ` is a note. A line that starts with `|`
continues the row above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlab._text.nearest import did_you_mean
from shardlab.errors import LabError
from shardlab.render.palette import Color
from shardlab.render.picture import NEUTRAL, WRONG_PAINT, AxisKey, Paint, Texture, mesh_paint
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.spec import Spec, parse_spec

COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather", "all_to_all", "ppermute"),
    *("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"),
)
# A page of somebody's catalogue is drawn in the web process, so pictures are bounded.
MAX_DEVICES, MAX_ITEMS, MAX_BLOCKS, MAX_TEXT, MAX_NOTE = 16, 24, 8, 40, 80
_ROW_HEAD = re.compile(
    r"(?P<name>.*?),? *(?P<spec>P\(.*\))?(?:,? +partial over (?P<partial>.+))? *"
)
_BLOCK = re.compile(r"(?:@(?P<origin>\d+) +)?(?P<wrong>! *)?(?P<text>.*)")
_EXAMPLE = "x P('data'): [1 2] | [3 4]"


class DevicesBlockError(ValueError):
    """A line of a `devices` block that cannot be drawn; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, kw_only=True)
class HeldBlock:
    """What a device holds, as text; `origin` is the device where it was before it moved."""

    text: str
    origin: int | None = None
    is_wrong: bool = False


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """One array or value: the blocks of each device, in mesh order.

    Without a spec nothing is said about shards and copies. A spec with `unreduced` mesh axes is
    that of partial sums. A full array has one cell, which is on no device in particular.
    """

    name: str
    spec: Spec | None
    cells: tuple[tuple[HeldBlock, ...], ...]
    is_full: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceStep:
    """What leads from one row to the next: on each device, or a collective over mesh axes."""

    text: str
    mesh_axes: tuple[str, ...] = ()  # none: nothing is sent
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} over {', '.join(self.mesh_axes)}" if self.mesh_axes else self.text


@dataclass(frozen=True, kw_only=True)
class Move:
    """A block that one device sends to another, in the color of its origin."""

    source: int
    target: int
    color: Color


@dataclass(frozen=True, kw_only=True)
class DevicesBlock:
    """Rows of devices and the steps between them, on one mesh.

    >>> text = "mesh x=2\\na, partial over x: 1 | 2\\n-> psum over x\\nb P(): 3"
    >>> block = parse_devices_block(text)
    >>> print(block.alternative)
    On mesh x=2. a, partial sums over x: device 0 holds 1; device 1 holds 2. Then psum over x. \
b, P(): every device holds 3.
    """

    mesh: Mesh
    items: tuple[DeviceRow | DeviceStep, ...]

    @property
    def rows(self) -> tuple[DeviceRow, ...]:
        return tuple(item for item in self.items if isinstance(item, DeviceRow))

    @property
    def steps(self) -> tuple[DeviceStep, ...]:
        return tuple(item for item in self.items if isinstance(item, DeviceStep))

    @property
    def textures(self) -> tuple[Texture, ...]:
        """The textures that need a legend, in its order."""
        paints = [
            self.paint(row, device, block)
            for row in self.rows
            for device, cell in enumerate(row.cells)
            for block in cell
        ]
        order: tuple[Texture, ...] = ("replica", "partial", "wrong")
        return tuple(texture for texture in order if any(p.texture == texture for p in paints))

    @property
    def axis_keys(self) -> tuple[AxisKey, ...]:
        """The legend of the hues that the picture has."""
        names = {name for row in self.rows if row.spec for name in row.spec.mesh_axes}
        names |= {name for step in self.steps for name in step.mesh_axes}
        role = ""
        if any(held.origin is not None for row in self.rows for cell in row.cells for held in cell):
            role = "each block has one shade"
        return tuple(
            AxisKey(name, axis, size, role)
            for axis, (name, size) in enumerate(self.mesh.shape.items())
            if size > 1 and name in names
        )

    @property
    def alternative(self) -> str:
        """Return the picture in words."""
        sentences = [
            _row_sentence(item) if isinstance(item, DeviceRow) else self._step_sentence(item)
            for item in self.items
        ]
        return " ".join([f"On mesh {self.mesh}.", *sentences])

    def find_moves(self, step: DeviceStep) -> tuple[Move, ...]:
        """Return who sends to whom in a permutation: what the origins of both rows say."""
        if step.text not in ("ppermute", "collective-permute"):
            return ()
        # Steps with equal texts are different places, so they are compared by identity.
        position = next(n for n, item in enumerate(self.items) if item is step)
        before, after = self.items[position - 1], self.items[position + 1]
        assert isinstance(before, DeviceRow)
        assert isinstance(after, DeviceRow)
        if before.is_full or after.is_full:
            return ()
        owners = {_origin(cell, device): device for device, cell in enumerate(before.cells) if cell}
        moves = [
            Move(
                source=owners[_origin(cell, device)],
                target=device,
                color=self.paint(after, device, cell[0]).colors[0],
            )
            for device, cell in enumerate(after.cells)
            if cell and _origin(cell, device) in owners
        ]
        return tuple(sorted(moves, key=lambda move: move.source))

    def moves_text(self, step: DeviceStep) -> str:
        """Return `0→1, 1→0` for a permutation, else an empty text."""
        return ", ".join(f"{move.source}→{move.target}" for move in self.find_moves(step))

    def _step_sentence(self, step: DeviceStep) -> str:
        moves = [f"{move.source} to {move.target}" for move in self.find_moves(step)]
        details = [*([f"from device {', '.join(moves)}"] if moves else []), step.note]
        note = ", ".join(filter(None, details))
        return f"Then {step}{f' ({note})' if note else ''}."

    def paint(self, row: DeviceRow, device: int, block: HeldBlock) -> Paint:
        """Return the colors of the mesh axes that shard the row, and the texture of a block."""
        if block.is_wrong:
            return WRONG_PAINT
        if row.spec is None and block.origin is None:
            return NEUTRAL
        names = self.mesh.axis_names
        if row.spec is not None and block.origin is None:
            names = row.spec.mesh_axes
        coordinate = self.mesh.coordinate(device if block.origin is None else block.origin)
        steps = {self.mesh.axis_names.index(name): 0 for name in names}
        return mesh_paint(
            self.mesh.axis_sizes, {axis: coordinate[axis] for axis in steps}, self._texture(row)
        )

    def _texture(self, row: DeviceRow) -> Texture:
        if row.spec is None:
            return ""
        sizes = self.mesh.shape
        if any(sizes[name] > 1 for name in row.spec.unreduced):
            return "partial"
        has_copies = any(size > 1 for name, size in sizes.items() if name not in row.spec.mesh_axes)
        return "replica" if has_copies else ""


def mesh_lines(block: DevicesBlock, n_columns: int) -> tuple[tuple[int, ...], ...]:
    """Return the devices in lines of `n_columns`, in mesh order."""
    devices = range(block.mesh.n_devices)
    return tuple(tuple(devices[start : start + n_columns]) for start in devices[::n_columns])


def line_label(block: DevicesBlock, device: int) -> str:
    """Return the coordinates of a device along all mesh axes except the last."""
    coordinate = zip(block.mesh.axis_names, block.mesh.coordinate(device), strict=True)
    return ",".join(f"{name}={step}" for name, step in [*coordinate][:-1])


def layout_words(row: DeviceRow) -> tuple[str, str]:
    """Return the spec of a row as code, and the rest of its layout in words."""
    if row.spec is None:
        return "", ""
    code = str(Spec(*row.spec.entries)) if row.spec.axes or not row.spec.unreduced else ""
    names = ", ".join(sorted(row.spec.unreduced))
    return code, f"partial sums over {names}" if names else ""


def _origin(cell: Sequence[HeldBlock], device: int) -> int:
    return device if cell[0].origin is None else cell[0].origin


def _row_sentence(item: DeviceRow) -> str:
    note = f" ({item.note})" if item.note else ""
    texts = [", ".join(map(_block_words, cell)) or "nothing" for cell in item.cells]
    if item.is_full:
        cells = f"the full array is {texts[0]}"
    elif len(set(texts)) == 1:
        cells = f"every device holds {texts[0]}"
    else:
        cells = "; ".join(f"device {device} holds {text}" for device, text in enumerate(texts))
    head = ", ".join(filter(None, [item.name, *layout_words(item)]))
    return f"{head}: {cells}{note}."


def _block_words(block: HeldBlock) -> str:
    return f"{block.text} (wrong)" if block.is_wrong else block.text


# ------------------------------------------------------------------------------------------ parsing


def parse_devices_block(text: str) -> DevicesBlock:
    """Return the picture of a `devices` block. Raises `DevicesBlockError`."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if lines and line.lstrip().startswith("|"):
            start, content = lines[-1]
            lines[-1] = (start, f"{content} {line.strip()}")
        elif line.strip():
            lines.append((number, line.strip()))
    if not lines:
        raise DevicesBlockError("it is empty; its first line is a mesh, such as mesh data=4", 1)
    mesh = _parse_mesh_line(*lines[0])
    items = tuple(_parse_items(lines[1:], mesh))
    last_line = lines[-1][0]
    if len(items) > MAX_ITEMS:
        raise DevicesBlockError(f"it has more than {MAX_ITEMS} rows and steps", last_line)
    for (number, _), item, before in zip(lines[1:], items, [None, *items], strict=False):
        if isinstance(item, DeviceStep) and not isinstance(before, DeviceRow):
            raise DevicesBlockError("a step follows a row, which it starts from", number)
    if not items or isinstance(items[-1], DeviceStep):
        raise DevicesBlockError(f"a row must follow, such as {_EXAMPLE}", last_line)
    return DevicesBlock(mesh=mesh, items=items)


def _parse_mesh_line(number: int, line: str) -> Mesh:
    word, _, text = line.partition(" ")
    if word != "mesh":
        raise DevicesBlockError("the first line is the mesh, such as mesh data=4", number)
    try:
        mesh = parse_mesh(text.strip())
    except LabError as error:
        raise DevicesBlockError(error.what.rstrip("."), number) from None
    if not 2 <= mesh.n_devices <= MAX_DEVICES:
        message = f"the mesh has {mesh.n_devices} devices; a picture has 2 to {MAX_DEVICES}"
        raise DevicesBlockError(message, number)
    if mesh.device_ids is not None:
        raise DevicesBlockError("the devices of the mesh must be in order: 0, 1, ...", number)
    return mesh


def _parse_items(lines: Sequence[tuple[int, str]], mesh: Mesh) -> Iterator[DeviceRow | DeviceStep]:
    for number, line in lines:
        content, _, note = line.partition(" # ")
        try:
            if len(note) > MAX_NOTE:
                raise ValueError(f"the note has more than {MAX_NOTE} letters")
            if content.startswith("->"):
                yield _parse_step(content.removeprefix("->").strip(), note.strip(), mesh)
            else:
                yield _parse_row(content.strip(), note.strip(), mesh)
        except LabError as error:
            raise DevicesBlockError(error.what.rstrip("."), number) from None
        except ValueError as error:
            raise DevicesBlockError(str(error), number) from None


def _parse_step(text: str, note: str, mesh: Mesh) -> DeviceStep:
    name, separator, axes = text.rpartition(" over ")
    if not separator:
        if not text or len(text) > MAX_TEXT:
            raise ValueError(f"a step has a text of 1 to {MAX_TEXT} letters, such as -> jnp.sum(y)")
        if text.partition("(")[0] in COLLECTIVES:
            raise ValueError(f"a collective names its mesh axes, such as -> {text} over data")
        return DeviceStep(text=text, note=note)
    if name not in COLLECTIVES:
        hint = did_you_mean(name, COLLECTIVES) or f"Known: {', '.join(COLLECTIVES)}"
        raise ValueError(f"{name!r} is not a collective. {hint}")
    return DeviceStep(text=name, mesh_axes=_parse_axes(axes, mesh), note=note)


def _parse_axes(text: str, mesh: Mesh) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(f"{name!r} is not a mesh axis of {mesh}")
    if len(set(names)) < len(names):
        raise ValueError(f"{text!r} names a mesh axis twice")
    return names


def _parse_row(text: str, note: str, mesh: Mesh) -> DeviceRow:
    head, colon, cell_text = text.partition(":")
    # The length is bounded first: the expression takes quadratic time.
    parts = _ROW_HEAD.fullmatch(head) if colon and len(head) <= 2 * MAX_TEXT else None
    if parts is None or not parts["name"].strip():
        raise ValueError(f"the line is neither a step, -> text, nor a row, such as {_EXAMPLE}")
    if parts["name"].startswith("full "):
        return _parse_full_row(parts, cell_text, note, mesh)
    spec = _parse_row_spec(parts["spec"], parts["partial"], mesh)
    cells = tuple(_parse_cell(cell, mesh) for cell in cell_text.split("|"))
    if len(cells) == 1:
        cells *= mesh.n_devices
    if len(cells) != mesh.n_devices:
        message = f"the row has {len(cells)} cells; the mesh has {mesh.n_devices} devices"
        raise ValueError(message)
    row = DeviceRow(name=parts["name"].strip(), spec=spec, cells=cells, note=note)
    _check_copies(row, mesh)
    return row


def _parse_full_row(parts: re.Match[str], cell_text: str, note: str, mesh: Mesh) -> DeviceRow:
    if parts["spec"] or parts["partial"] or "|" in cell_text:
        raise ValueError("a full array has one cell and no spec: it is not on the devices")
    cell = _parse_cell(cell_text, mesh)
    if len(cell) != 1 or cell[0].origin is not None:
        raise ValueError("a full array has one text, such as full x: [1 2 3 4]")
    name = parts["name"].removeprefix("full ").strip()
    return DeviceRow(name=name, spec=None, cells=(cell,), is_full=True, note=note)


def _parse_row_spec(spec_text: str | None, partial: str | None, mesh: Mesh) -> Spec | None:
    if spec_text is None and partial is None:
        return None
    spec = parse_spec(spec_text or "")
    if spec.mesh_axes:
        _parse_axes(",".join(spec.mesh_axes), mesh)
    unreduced = _parse_axes(partial, mesh) if partial else ()
    if both := set(unreduced) & set(spec.mesh_axes):
        raise ValueError(f"{sorted(both)[0]!r} cannot both shard the array and have partial sums")
    return Spec(*spec.entries, unreduced=unreduced)


def _parse_cell(text: str, mesh: Mesh) -> tuple[HeldBlock, ...]:
    if not text.strip():
        return ()
    texts = text.split(";")
    if len(texts) > MAX_BLOCKS:
        raise ValueError(f"a cell has more than {MAX_BLOCKS} blocks")
    return tuple(_parse_held_block(block.strip(), mesh) for block in texts)


def _parse_held_block(text: str, mesh: Mesh) -> HeldBlock:
    parts = _BLOCK.fullmatch(text)
    if parts is None or not parts["text"]:
        raise ValueError("a block between ';' has no text")
    if len(parts["text"]) > MAX_TEXT:
        raise ValueError(f"{parts['text']!r} has more than {MAX_TEXT} letters")
    origin = None if parts["origin"] is None else int(parts["origin"])
    if origin is not None and origin >= mesh.n_devices:
        message = f"@{origin}: the devices are 0 to {mesh.n_devices - 1}"
        raise ValueError(message)
    return HeldBlock(text=parts["text"], origin=origin, is_wrong=bool(parts["wrong"]))


def _check_copies(row: DeviceRow, mesh: Mesh) -> None:
    """Raise `ValueError` if devices that hold copies, as the spec says, have different texts."""
    if row.spec is None:
        return
    names = {*row.spec.mesh_axes, *row.spec.unreduced}
    axes = [axis for axis, name in enumerate(mesh.axis_names) if name in names]
    owners: dict[tuple[int, ...], int] = {}
    for device, cell in enumerate(row.cells):
        coordinate = mesh.coordinate(device)
        owner = owners.setdefault(tuple(coordinate[axis] for axis in axes), device)
        # Copies that disagree can be shown too, if the wrong one is marked.
        has_wrong = any(block.is_wrong for block in (*cell, *row.cells[owner]))
        if cell != row.cells[owner] and not has_wrong:
            code, _ = layout_words(row)
            raise ValueError(
                f"devices {owner} and {device} hold copies under {code or 'this layout'}, "
                "but their cells differ; mark a wrong one with !"
            )
