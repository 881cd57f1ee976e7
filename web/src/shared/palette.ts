// The visual language: one hue for each mesh axis, one shade for each coordinate along it.
//
// The same numbers as src/shardlab/render/palette.py, which explains them; palette.test.ts and
// tests/render/test_palette.py compare both with tests/render/palette_samples.json. static/visual.css has the
// colors of text and paper and the textures as custom properties and classes. The rules:
//
// - A device or shard has one color for each mesh axis that shards the array, in mesh order: the first is the fill
//   of the cell, each further one a band at its lower edge. Use cellColors() for that.
// - Nothing shards it: slate, neutralColor(0, 2).
// - Replicas are hatched (.texture-replica), partial sums striped (.texture-partial), copies that disagree red
//   (.texture-wrong) with the sign "≠". A cell has a label too: color is never the only sign.
// - What is not a mesh axis (operations, kinds of memory) is a shade of slate, distinguished by its label.
// - Labels on any shade are INK of the same theme: contrast is at least 4.5 all along each ramp.

type Ramp = readonly [hue: number, lightFrom: number, lightTo: number, darkFrom: number, darkTo: number];

/** Hue of each mesh axis in mesh order, then the chroma at both ends of the light and of the dark ramp, in OKLCH. */
export const AXIS_HUES: readonly Ramp[] = [
  [252, 0.04, 0.135, 0.06, 0.135], // blue
  [60, 0.055, 0.14, 0.055, 0.115], // orange
  [165, 0.07, 0.125, 0.05, 0.1], // green
  [340, 0.055, 0.15, 0.07, 0.145], // pink
  [105, 0.1, 0.125, 0.05, 0.1], // yellow
  [215, 0.055, 0.105, 0.042, 0.085], // cyan
  [300, 0.045, 0.15, 0.07, 0.145], // violet
  [130, 0.09, 0.15, 0.06, 0.125], // lime
];
const SLATE: Ramp = [255, 0.006, 0.02, 0.01, 0.02];
const LIGHT_RAMP = [0.9, 0.645] as const;
const DARK_RAMP = [0.3, 0.525] as const;

/** Colors of text and surfaces: [on light paper, on dark paper]. */
export const PAPER = ["#FFFFFF", "#14171C"] as const;
export const INK = ["#14171C", "#F2F4F7"] as const;
export const FAINT = ["#565C66", "#A9B0BB"] as const;
export const LINE = ["#C3C8D0", "#434A55"] as const;
export const PANEL = ["#F2F4F7", "#1E2229"] as const;
export const WRONG = ["#F2877B", "#93261E"] as const;
export const ALARM = ["#B3261E", "#FF9C90"] as const;

/**
 * Textures for SVG, as <pattern patternUnits="userSpaceOnUse"> of size x size with one path stroked in INK.
 *
 * Thin lines rising to the right are replicas, broad bands falling to the right are partial sums: they differ in width
 * and direction, and neither hides the label.
 */
export const TEXTURES = {
  replica: { size: 7, path: "M-1 1L1 -1M0 7L7 0M6 8L8 6", strokeWidth: 1, opacity: 0.25 },
  partial: { size: 12, path: "M-3 -3L15 15M-3 9L3 15M9 -3L15 3", strokeWidth: 4, opacity: 0.14 },
} as const;

/** The color of a coordinate along the `axisIndex`th mesh axis, which has `size` devices. */
export function axisColor(axisIndex: number, coordinate: number, size: number, dark: boolean): string {
  return rampColor(AXIS_HUES[axisIndex % AXIS_HUES.length]!, coordinate, size, dark);
}

/** The color of the `position`th of `count` things that are not mesh axes; (0, 2) for what no axis shards. */
export function neutralColor(position: number, count: number, dark: boolean): string {
  return rampColor(SLATE, position, count, dark);
}

/**
 * The colors of a cell: the fill, then one band for each further axis that shards the array.
 *
 * `mesh` is [name, size] in mesh order, `coordinates` the position of a device along each axis, and `shardingAxes` the
 * names of the axes that shard the array. Devices with the same shard have the same colors.
 */
export function cellColors(
  mesh: readonly (readonly [string, number])[],
  coordinates: readonly number[],
  shardingAxes: readonly string[],
  dark: boolean,
): string[] {
  const colors: string[] = [];
  mesh.forEach(([name, size], index) => {
    if (size > 1 && shardingAxes.includes(name)) colors.push(axisColor(index, coordinates[index] ?? 0, size, dark));
  });
  return colors.length > 0 ? colors : [neutralColor(0, 2, dark)];
}

function rampColor(ramp: Ramp, position: number, count: number, dark: boolean): string {
  // A single position is the middle of the ramp: neither the first nor the last of several.
  const fraction = count > 1 ? position / (count - 1) : 0.5;
  const [hue, lightFrom, lightTo, darkFrom, darkTo] = ramp;
  return dark
    ? oklchHex(between(DARK_RAMP[0], DARK_RAMP[1], fraction), between(darkFrom, darkTo, fraction), hue)
    : oklchHex(between(LIGHT_RAMP[0], LIGHT_RAMP[1], fraction), between(lightFrom, lightTo, fraction), hue);
}

function between(from: number, to: number, fraction: number): number {
  return from + (to - from) * fraction;
}

/** Returns an OKLCH color (Ottosson 2020) as sRGB: canvases and older browsers do not read oklch(). */
function oklchHex(lightness: number, chroma: number, hue: number): string {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channels = [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ];
  const digits = channels.map((value) => {
    const level = Math.min(Math.max(value, 0), 1);
    const encoded = level <= 0.0031308 ? 12.92 * level : 1.055 * level ** (1 / 2.4) - 0.055;
    return Math.floor(encoded * 255 + 0.5).toString(16).padStart(2, "0").toUpperCase();
  });
  return `#${digits.join("")}`;
}
