// A cursor over the text of a mesh, spec or shape, whose errors mark the exact position: a port of _text/scanner.py.

import { LabError } from "./lab_error.ts";
import { SPACE, characterCount, isPrintable, isSpace, stripEnd, withCommas } from "./python_text.ts";

const SPACES = new RegExp(`[${SPACE}]*`, "uy");
const NAME = /[\p{L}\p{Nl}\p{No}_][\p{L}\p{N}_.\-]*/uy;
const INTEGER = /[+-]?\p{Nd}+(?:_\p{Nd}+)*/uy;
const QUOTED = /'[^']*'|"[^"]*"/uy;
const WORD = new RegExp(`[^${SPACE},()\\[\\]=:]+|.`, "suy");
const MAX_DIGITS = 100;
const EXCERPT_WIDTH = 72;

export class Scanner {
  readonly source: string;
  readonly kind: string;
  private position = 0;
  private lastStart = 0;

  constructor(source: string, kind: string) {
    this.source = source;
    this.kind = kind;
  }

  /** Consumes `token` if it is next. */
  take(token: string): boolean {
    if (!this.nextIs(token)) return false;
    this.advance(token.length);
    return true;
  }

  nextIs(token: string): boolean {
    this.skipSpace();
    return this.source.startsWith(token, this.position);
  }

  /** Consumes a bare or quoted name. */
  takeName(): string | null {
    const quoted = this.match(QUOTED);
    return quoted === null ? this.match(NAME) : quoted.slice(1, -1);
  }

  takeInteger(): bigint | null {
    const digits = this.match(INTEGER);
    if (digits === null) return null;
    const length = characterCount(digits);
    if (length > MAX_DIGITS) {
      const fix = "write a size that an array can have.";
      throw this.error(`The number has ${withCommas(length)} digits.`, fix, true);
    }
    return parseInteger(digits);
  }

  get atEnd(): boolean {
    this.skipSpace();
    return this.position === this.source.length;
  }

  /** An error that points at the next word, or with `back` at the last token. */
  error(message: string, fix: string, back = false): LabError {
    this.skipSpace();
    let start = this.position;
    let stop = start + 1;
    if (back) {
      start = this.lastStart;
      stop = start + Math.max(1, stripEnd(this.source.slice(start, this.position)).length);
    } else {
      WORD.lastIndex = start;
      const word = WORD.exec(this.source);
      if (word) stop = start + word[0].length;
    }
    return syntaxError(message, this.source, start, stop, this.kind, fix);
  }

  private match(pattern: RegExp): string | null {
    this.skipSpace();
    pattern.lastIndex = this.position;
    const found = pattern.exec(this.source);
    if (found === null) return null;
    this.advance(found[0].length);
    return found[0];
  }

  private advance(length: number): void {
    this.lastStart = this.position;
    this.position += length;
  }

  private skipSpace(): void {
    SPACES.lastIndex = this.position;
    this.position += SPACES.exec(this.source)![0].length;
  }
}

/** An error whose `where` marks the UTF-16 units start to stop with `^^^`. */
export function syntaxError(
  message: string,
  source: string,
  start: number,
  stop: number,
  kind: string,
  fix: string,
): LabError {
  // Marks are counted in characters, as they are printed; a position may be one past the end.
  const count = (end: number) => characterCount(source.slice(0, end)) + Math.max(0, end - source.length);
  const excerpt = excerptLine(source, count(start), count(stop));
  const marks = " ".repeat(excerpt.start) + "^".repeat(Math.max(0, excerpt.stop - excerpt.start));
  const where = `the ${kind} text\n         ${excerpt.line}\n         ${marks}`;
  return new LabError("layout.invalid_syntax", message, { where, fix });
}

/** One line of the source around start to stop, and both positions in that line. */
function excerptLine(source: string, start: number, stop: number) {
  const flat = [...source].map(visibleCharacter);
  const half = EXCERPT_WIDTH / 2;
  const lastMark = Math.min(stop, start + half);
  const first = Math.max(0, Math.min(start - half, flat.length - EXCERPT_WIDTH));
  const last = first + EXCERPT_WIDTH;
  const head = first ? "…" : "";
  const tail = last < flat.length ? "…" : "";
  const shift = head.length - first;
  return { line: head + flat.slice(first, last).join("") + tail, start: start + shift, stop: lastMark + shift };
}

function visibleCharacter(character: string): string {
  if (isPrintable(character)) return character;
  return isSpace(character) ? " " : "�";
}

/** Python's `int` reads the decimal digits of every script. */
function parseInteger(text: string): bigint {
  const sign = text.startsWith("-") ? -1n : 1n;
  const digits = [...text.replace(/^[+-]/, "").replaceAll("_", "")].map(digitValue).join("");
  return sign * BigInt(digits);
}

function digitValue(character: string): number {
  const code = character.codePointAt(0)!;
  if (code < 128) return code - 48;
  // Unicode has the ten digits of a script in order; several sets can follow each other directly.
  let first = code;
  while (/\p{Nd}/u.test(String.fromCodePoint(first - 1))) first -= 1;
  return (code - first) % 10;
}
