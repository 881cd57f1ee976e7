// Numbers as text: bytes, times and values, in the units of the command line.

const BYTE_UNITS: [string, number][] = [["PB", 1e15], ["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
const TIME_UNITS: [string, number][] = [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9], ["ps", 1e-12], ["fs", 1e-15]];

/** 1500 -> "1.5 kB": decimal units with one digit, as shardlab._text.units.bytes_text writes them. */
export function formatBytes(count: number): string {
  for (const [unit, scale] of BYTE_UNITS) {
    if (Math.abs(count) >= scale * 0.99995) return `${(count / scale).toFixed(1)} ${unit}`;
  }
  const rounded = Math.round(count);
  return `${rounded} byte${Math.abs(rounded) === 1 ? "" : "s"}`;
}

/** 0.0000123 -> "12.3 \u00b5s": three digits, as shardlab._text.units.seconds_text writes them. */
export function formatSeconds(seconds: number | null): string {
  if (seconds === null) return "no time";
  if (seconds === 0) return "0 s";
  for (const [unit, scale] of TIME_UNITS) {
    if (Math.abs(seconds) >= scale * 0.9995) return `${threeDigits(seconds / scale)} ${unit}`;
  }
  return `${threeDigits(seconds / 1e-15)} fs`;
}

/** 12345678 -> "12.3 M". */
export function formatCount(count: number): string {
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]] as const) {
    if (Math.abs(count) >= scale) return `${threeDigits(count / (unit === "k" ? 1e3 : scale))} ${unit}`;
  }
  return String(count);
}

/** A value of an array, in at most `width` characters where that is possible. */
export function formatNumber(value: number, width = 7): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "\u2212");
  const magnitude = Math.abs(value);
  const digits = Math.max(1, width - 3);
  const text =
    magnitude >= 1e5 || magnitude < 1e-3
      ? value.toExponential(Math.max(0, Math.min(2, width - 6)))
      : Number(value.toPrecision(Math.min(6, digits))).toString();
  return text.replace("-", "\u2212");
}

/** A number that JSON may carry as the text "NaN" or "Infinity". */
export function readNumber(value: number | string | null): number | null {
  return value === null ? null : Number(value);
}

export function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function threeDigits(value: number): string {
  return Math.abs(value) >= 1000 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

/** The first sentence of a long message, and the complete one. JAX's messages can fill the screen; most are shown as they are. */
export function splitMessage(message: string): [first: string, full: string] {
  if (message.length <= 600) return [message, ""];
  const match = /^[^]{20,260}?(?:[.:](?=\s)|\n)/.exec(message);
  const first = match === null ? `${message.slice(0, 200)}\u2026` : match[0].trim().replace(/:$/, ".");
  return [first, message];
}
