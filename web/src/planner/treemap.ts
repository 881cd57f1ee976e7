// A squarified treemap (Bruls, Huizing and van Wijk 2000): areas in proportion to sizes, as square as possible.

export interface Area {
  readonly index: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** Places sizes, which must be positive and in descending order, in a rectangle. */
export function squarify(sizes: readonly number[], width: number, height: number): Area[] {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  if (total <= 0 || width <= 0 || height <= 0) return [];
  const scale = (width * height) / total;
  const areas: Area[] = [];
  let [x, y, freeWidth, freeHeight] = [0, 0, width, height];
  let start = 0;
  while (start < sizes.length) {
    const side = Math.min(freeWidth, freeHeight);
    let stop = start + 1;
    let sum = sizes[start]! * scale;
    // A strip grows as long as its worst shape gets better.
    while (stop < sizes.length) {
      const next = sum + sizes[stop]! * scale;
      if (worstRatio(sizes[start]! * scale, sizes[stop]! * scale, next, side) > worstRatio(sizes[start]! * scale, sizes[stop - 1]! * scale, sum, side)) break;
      sum = next;
      stop += 1;
    }
    const thickness = sum / side;
    let offset = 0;
    for (let index = start; index < stop; index++) {
      const length = (sizes[index]! * scale) / thickness;
      areas.push(
        freeWidth >= freeHeight
          ? { index, x, y: y + offset, width: thickness, height: length }
          : { index, x: x + offset, y, width: length, height: thickness },
      );
      offset += length;
    }
    if (freeWidth >= freeHeight) [x, freeWidth] = [x + thickness, freeWidth - thickness];
    else [y, freeHeight] = [y + thickness, freeHeight - thickness];
    start = stop;
  }
  return areas;
}

function worstRatio(largest: number, smallest: number, sum: number, side: number): number {
  return Math.max((side * side * largest) / (sum * sum), (sum * sum) / (side * side * smallest));
}
