"""Marks of SVG pictures: boxes, text, arrows and textures, in colors for light and dark paper.

A picture is one self-contained element. Each color is an attribute with its value on light paper,
for readers without style sheets, and a class whose custom property changes on dark paper: the
system decides, or `data-theme` on the root of the page that has the picture inline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

from shardlab.render.palette import ALARM, FAINT, INK, LINE, PAPER, WRONG, Color
from shardlab.render.picture import Paint, Texture
from shardlab.render.text_width import TEXT_SIZE, text_width

MARGIN, LINE_HEIGHT = 20.0, 17.0  # pixels: around the picture, from line to line
TITLE_SIZE, SMALL_SIZE = 15.0, 11.0  # pixels: height of text
BAND_HEIGHT = 7.0  # pixels: of each further mesh axis at the lower edge of a cell
_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
# The same textures as TEXTURES in web/src/shared/palette.ts: size, path, stroke width, opacity.
_TEXTURES: dict[Texture, tuple[int, str, float, float]] = {
    "replica": (7, "M-1 1L1 -1M0 7L7 0M6 8L8 6", 1, 0.25),
    "partial": (12, "M-3 -3L15 15M-3 9L3 15M9 -3L15 3", 4, 0.14),
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def shrink(self, pixels: float) -> Box:
        """Return the box without a border of that many pixels."""
        return Box(
            x=self.x + pixels,
            y=self.y + pixels,
            width=max(self.width - 2 * pixels, 0.0),
            height=max(self.height - 2 * pixels, 0.0),
        )


class SvgCanvas:
    """A picture in the making: marks are added, then `to_svg` returns the element."""

    def __init__(self) -> None:
        self._marks: list[str] = []
        self._fills: dict[str, Color] = {}
        self._strokes: dict[str, Color] = {}
        self._textures: set[Texture] = set()
        self.right = self.bottom = 0.0  # of what is drawn so far

    def to_svg(self, title: str, alternative: str, *, width: float = 0.0) -> str:
        """Return the element; it is as large as what is drawn, and at least `width` wide."""
        width = max(self.right + MARGIN, width)
        height = self.bottom + MARGIN
        description = escape(alternative)
        paper = self._attributes(fill=PAPER)
        patterns = [*self._texture_patterns()]  # before the style sheet: they have colors too
        head = (
            '<svg xmlns="http://www.w3.org/2000/svg" class="shardlab-picture" role="img" '
            f'aria-label="{description}" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" font-family="{_SANS}" '
            f'font-size="{TEXT_SIZE:g}">',
            # <title> and <desc> are read by screen readers, aria-label by those that ignore both.
            f"<title>{escape(title)}</title>",
            f"<desc>{description}</desc>",
            f"<style>{self._style_sheet()}</style>",
            *patterns,
            f'<rect width="100%" height="100%" rx="8"{paper}/>',
        )
        return "\n".join([*head, *self._marks, "</svg>"])

    def _style_sheet(self) -> str:
        colors = {**self._fills, **self._strokes}
        light = "".join(f"--{name}:{color.light};" for name, color in colors.items())
        dark = "".join(f"--{name}:{color.dark};" for name, color in colors.items())
        fills = "".join(f".f-{name}{{fill:var(--{name})}}" for name in self._fills)
        strokes = "".join(f".k-{name}{{stroke:var(--{name})}}" for name in self._strokes)
        return (
            f".shardlab-picture{{{light}}}"
            # Standalone, the picture is the root itself; inline, the page's theme decides.
            "@media(prefers-color-scheme:dark){:root:not([data-theme=light]) .shardlab-picture,"
            f":root.shardlab-picture{{{dark}}}}}"
            f":root[data-theme=dark] .shardlab-picture{{{dark}}}"
            f"{fills}{strokes}.code{{font-family:{_MONO}}}"
        )

    def _texture_patterns(self) -> Iterator[str]:
        for texture in sorted(self._textures):
            size, path, width, opacity = _TEXTURES[texture]
            stroke = self._attributes(stroke=INK)
            yield (
                f'<defs><pattern id="texture-{texture}" width="{size}" height="{size}" '
                f'patternUnits="userSpaceOnUse"><path d="{path}" fill="none"{stroke} '
                f'stroke-width="{width:g}" stroke-opacity="{opacity:g}"/></pattern></defs>'
            )

    def _attributes(self, *, fill: Color | None = None, stroke: Color | None = None) -> str:
        """Return the attributes of colors: the values on light paper, and the classes."""
        classes, values = [], []
        if fill is not None:
            self._fills[fill.name] = fill
            classes.append(f"f-{fill.name}")
            values.append(f'fill="{fill.light}"')
        if stroke is not None:
            self._strokes[stroke.name] = stroke
            classes.append(f"k-{stroke.name}")
            values.append(f'stroke="{stroke.light}"')
        return f' class="{" ".join(classes)}" {" ".join(values)}' if classes else ""

    def _extend(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)

    @contextmanager
    def hover(self, text: str) -> Iterator[None]:
        """Group the marks drawn inside; `text` is their tooltip."""
        self._marks.append(f"<g><title>{escape(text)}</title>" if text else "<g>")
        yield
        self._marks.append("</g>")

    def box(
        self,
        box: Box,
        fill: Color | None,
        *,
        stroke: Color | None = None,
        stroke_width: float = 1.0,
        radius: float = 0.0,
        dashes: str = "",
    ) -> None:
        """Draw a rectangle."""
        self._extend(box.right, box.bottom)
        colors = self._attributes(fill=fill, stroke=stroke)
        empty = "" if fill is not None else ' fill="none"'
        edge = f' stroke-width="{stroke_width:g}"' if stroke and stroke_width != 1 else ""
        corner = f' rx="{radius:g}"' if radius else ""
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._marks.append(f"<rect{_box_svg(box)}{corner}{colors}{empty}{edge}{dash}/>")

    def texture(self, box: Box, texture: Texture, *, radius: float = 0.0) -> None:
        """Draw the lines of a texture over a box."""
        if texture not in _TEXTURES:
            return
        self._textures.add(texture)
        corner = f' rx="{radius:g}"' if radius else ""
        self._marks.append(f'<rect{_box_svg(box)}{corner} fill="url(#texture-{texture})"/>')

    def paint(self, box: Box, paint: Paint, *, radius: float = 3.0) -> None:
        """Draw a cell: the first color fills it, each further one is a band at its lower edge."""
        if paint.texture == "wrong":
            self.box(box, WRONG, stroke=ALARM, stroke_width=2, radius=radius)
            return
        first, *others = paint.colors
        self.box(box, first, radius=radius)
        self.texture(box, paint.texture, radius=radius)
        # A low cell has lower bands, so that its label has room.
        band_height = min(BAND_HEIGHT, box.height / (len(others) + 3))
        y = box.bottom - band_height * len(others)
        for color in others:
            self.box(Box(x=box.x, y=y, width=box.width, height=band_height), color)
            self.line(((box.x, y), (box.right, y)), PAPER)
            y += band_height
        self.box(box, None, stroke=LINE, radius=radius)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        color: Color = INK,
        *,
        size: float = TEXT_SIZE,
        anchor: str = "start",
        is_bold: bool = False,
        is_code: bool = False,
        is_upward: bool = False,
    ) -> None:
        """Draw a line of text; `y` is its baseline. `is_upward` turns it to read from below."""
        if not text:
            return
        width = text_width(text, size, is_bold=is_bold, is_code=is_code)
        if is_upward:
            self._extend(x, y)
        else:
            self._extend(x + width * {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor], y)
        colors = self._attributes(fill=color)
        if is_code:
            colors = colors.replace('class="', 'class="code ', 1)
        attributes = "" if size == TEXT_SIZE else f' font-size="{size:g}"'
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        attributes += ' font-weight="600"' if is_bold else ""
        attributes += f' transform="rotate(-90 {x:g} {y:g})"' if is_upward else ""
        position = f' x="{_number(x)}" y="{_number(y)}"'
        self._marks.append(f"<text{position}{colors}{attributes}>{escape(text)}</text>")

    def backdrop(self, x: float, y: float, width: float, size: float, color: Color) -> None:
        """Draw the ground of a centered line of text, so that a texture does not run through it."""
        box = Box(x=x - width / 2 - 3, y=y - size * 0.85, width=width + 6, height=size * 1.15)
        fill = self._attributes(fill=color)
        self._marks.append(f'<rect{_box_svg(box)} rx="3"{fill} fill-opacity=".8"/>')

    def line(
        self,
        points: Sequence[tuple[float, float]],
        color: Color,
        *,
        width: float = 1.0,
        dashes: str = "",
    ) -> None:
        """Draw a line through points."""
        for x, y in points:
            self._extend(x, y)
        colors = self._attributes(stroke=color)
        edge = f' stroke-width="{width:g}"' if width != 1 else ""
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._marks.append(f'<path d="{_path(points)}" fill="none"{colors}{edge}{dash}/>')

    def polygon(
        self, points: Sequence[tuple[float, float]], fill: Color, stroke: Color | None = None
    ) -> None:
        """Draw a filled shape."""
        for x, y in points:
            self._extend(x, y)
        colors = self._attributes(fill=fill, stroke=stroke)
        self._marks.append(f'<path d="{_path(points)}Z"{colors} stroke-linejoin="round"/>')

    def polygon_texture(self, points: Sequence[tuple[float, float]], texture: Texture) -> None:
        """Draw the lines of a texture over a shape."""
        if texture in _TEXTURES:
            self._textures.add(texture)
            self._marks.append(f'<path d="{_path(points)}Z" fill="url(#texture-{texture})"/>')

    def arrow(
        self, points: Sequence[tuple[float, float]], color: Color, *, width: float = 1.6
    ) -> None:
        """Draw a line with a head at its last point."""
        *_, (x0, y0), (x, y) = points
        length = max(((x - x0) ** 2 + (y - y0) ** 2) ** 0.5, 0.001)
        head = 2.5 + 2.5 * width
        ux, uy = (x - x0) / length, (y - y0) / length
        base = (x - ux * head, y - uy * head)
        self.line((*points[:-1], base), color, width=width)
        side = head * 0.5
        self.polygon(
            (
                (x, y),
                (base[0] - uy * side, base[1] + ux * side),
                (base[0] + uy * side, base[1] - ux * side),
            ),
            color,
        )


def _box_svg(box: Box) -> str:
    return (
        f' x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" '
        f'height="{_number(box.height)}"'
    )


def _number(value: float) -> str:
    return f"{round(value, 1):g}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def draw_title(canvas: SvgCanvas, title: str, facts: Iterable[str], *, is_code: bool) -> float:
    """Draw title and facts at the top; return the y position below them."""
    y = MARGIN + TITLE_SIZE * 0.8
    gap = 4.0  # below the title only
    canvas.text(MARGIN, y, title, size=TITLE_SIZE, is_bold=True, is_code=is_code)
    for fact in facts:
        y += LINE_HEIGHT + gap
        gap = 0.0
        canvas.text(MARGIN, y, fact, FAINT)
    return y + LINE_HEIGHT * 0.6


def flow_entries(widths: Sequence[float], left: float, right: float) -> Iterator[tuple[float, int]]:
    """Yield x position and line number of entries that follow each other and wrap.

    >>> list(flow_entries([40, 40, 40], 0, 100))
    [(0, 0), (40, 0), (0, 1)]
    """
    x, line = left, 0
    for width in widths:
        if x + width > right and x > left:
            x, line = left, line + 1
        yield x, line
        x += width
