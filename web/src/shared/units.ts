// Amounts as text: a port of _text/units.py and _text/indices.py.

import { withCommas } from "./python_text.ts";

const UNITS = [
  [18, "EB"],
  [15, "PB"],
  [12, "TB"],
  [9, "GB"],
  [6, "MB"],
  [3, "kB"],
] as const;

/** Bytes in decimal units with one digit: the only byte formatter. */
export function bytesText(amount: bigint | number): string {
  const bytes = typeof amount === "bigint" ? amount : BigInt(Math.round(amount));
  for (const [power, unit] of UNITS) {
    // 999,960 is 1.0 MB, not 1000.0 kB. A comparison of a bigint with a number is exact.
    if (bytes >= 10 ** power * 0.99995) return `${oneDigit(divide(bytes, 10n ** BigInt(power)))} ${unit}`;
  }
  return `${bytes} byte${bytes === 1n ? "" : "s"}`;
}

/** The quotient of two integers, correctly rounded as Python's `/`. */
export function divide(dividend: bigint, divisor: bigint): number {
  if (dividend < 2n ** 53n && divisor < 2n ** 53n) return Number(dividend) / Number(divisor);
  const shift = 70n;
  const scaled = dividend << shift;
  // The last bit stands for everything that the division dropped, so that Number() rounds once and correctly.
  const quotient = (scaled / divisor) | (scaled % divisor ? 1n : 0n);
  return Number(quotient) / 2 ** Number(shift);
}

/** `f"{value:,.1f}"`: ties go to the even digit, and toFixed rounds them up. */
function oneDigit(value: number): string {
  let text = value.toFixed(1);
  // A double has a tie at one decimal only if it is an odd number of quarters.
  if (value < 2 ** 50 && (value * 4) % 2 === 1) {
    const tenths = Math.floor(value * 10);
    text = ((tenths % 2 ? tenths + 1 : tenths) / 10).toFixed(1);
  }
  if (value >= 1e21) text = `${BigInt(value)}.0`;
  const [integer, decimal] = text.split(".");
  return `${withCommas(BigInt(integer!))}.${decimal}`;
}

/** A count with its noun: `1 shard`, `4,096 devices`. */
export function countText(count: bigint | number, noun: string): string {
  return `${withCommas(count)} ${noun}${Number(count) === 1 ? "" : "s"}`;
}

export interface IndexRange {
  readonly start: bigint;
  readonly stop: bigint;
}

/** An index in NumPy notation, `:` for a full dimension. */
export function indexText(index: readonly IndexRange[], shape: readonly bigint[]): string {
  const ranges = index.map(({ start, stop }, dim) => (start === 0n && stop === shape[dim] ? ":" : `${start}:${stop}`));
  return `[${ranges.join(", ")}]`;
}

export function shapeText(shape: readonly bigint[]): string {
  return `[${shape.join(", ")}]`;
}

/** Device ids: all of them up to four, else a range, else the first two and the count. */
export function devicesText(devices: Iterable<number>, count: number, short = false): string {
  const ids: number[] = [];
  for (const device of devices) {
    ids.push(device);
    if (ids.length === 64 || (ids.length >= 4 && ids.at(-1)! - ids.at(-2)! !== 1)) break;
  }
  const noun = short ? "" : count === 1 ? "device " : "devices ";
  if (count > 2 && count === ids.length && ids.at(-1)! - ids[0]! + 1 === count) return `${noun}${ids[0]}-${ids.at(-1)}`;
  if (count <= 4) return noun + ids.join(short ? "," : ", ");
  return short ? `${ids[0]},…` : `${noun}${ids[0]}, ${ids[1]}, … (${withCommas(count)})`;
}
