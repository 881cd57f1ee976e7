// Text as Python prints it: repr, truncation by characters, thousands separators. Messages of the browser code are
// the same as those of shardlab, character by character; tests/web/test_layout_port.py compares them.

const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}\p{Zs}]/u;
/** What Python's `str.isspace` and `\s` accept; JavaScript's `\s` is a little different. */
export const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const IS_SPACE = new RegExp(`^[${SPACE}]$`, "u");
const TRAILING_SPACE = new RegExp(`[${SPACE}]+$`, "u");
const OUTER_SPACE = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu");
// Terminal escapes, bidirectional marks, lone surrogates: the same set as `_UNPRINTABLE` of shardlab.errors.
const NEVER_SHOWN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\u{d800}-\u{dfff}\ufeff]/gu;

export function isPrintable(text: string): boolean {
  return [...text].every((character) => character === " " || !UNPRINTABLE.test(character));
}

export function isSpace(character: string): boolean {
  return IS_SPACE.test(character);
}

export function stripEnd(text: string): string {
  return text.replace(TRAILING_SPACE, "");
}

export function strip(text: string): string {
  return text.replace(OUTER_SPACE, "");
}

/** The first `length` characters; Python counts characters, JavaScript UTF-16 units. */
export function truncate(text: string, length: number): string {
  return text.length <= length ? text : [...text].slice(0, length).join("");
}

export function characterCount(text: string): number {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

/** Python's `repr` of a string. */
export function repr(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  let body = "";
  for (const character of text) {
    if (character === quote || character === "\\") body += `\\${character}`;
    else if (character === " " || !UNPRINTABLE.test(character)) body += character;
    else body += escapeCharacter(character);
  }
  return quote + body + quote;
}

/** `repr` for messages: truncated before and after, as `shardlab.errors.short_repr`. */
export function shortRepr(text: string, length = 80): string {
  return quoteText(truncate(repr(truncate(text, length)), length));
}

/** Replaces characters that could reorder or hide a message by their escape sequence. */
export function quoteText(text: string): string {
  return text.replace(NEVER_SHOWN, escapeCharacter);
}

function escapeCharacter(character: string): string {
  const named: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  if (named[character]) return named[character];
  const code = character.codePointAt(0)!;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\U${code.toString(16).padStart(8, "0")}`;
}

/** `1234567` as `1,234,567`. */
export function withCommas(value: bigint | number): string {
  return value.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A tuple of sizes as Python prints it: `(8, 6)`, `(8,)`, `()`. */
export function tupleText(sizes: readonly (bigint | number)[]): string {
  return sizes.length === 1 ? `(${sizes[0]},)` : `(${sizes.join(", ")})`;
}
