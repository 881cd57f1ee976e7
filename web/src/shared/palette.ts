// The visual language: one hue per mesh axis, shade by coordinate along it. The same numbers as render/palette.py.

/** Hue of each mesh axis in mesh order, as CSS oklch hue angles. */
export const AXIS_HUES = [250, 55, 150, 330, 200, 100, 20, 290] as const;

/** The color of a coordinate along one mesh axis. */
export function axisColor(axisIndex: number, coordinate: number, size: number, dark: boolean): string {
  const hue = AXIS_HUES[axisIndex % AXIS_HUES.length];
  const fraction = size > 1 ? coordinate / (size - 1) : 0.5;
  const lightness = dark ? 0.42 + 0.34 * fraction : 0.86 - 0.34 * fraction;
  return `oklch(${lightness.toFixed(3)} 0.11 ${hue})`;
}
