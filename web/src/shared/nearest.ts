// Suggestions for misspelled names: a port of _text/nearest.py with the similarity of Python's difflib.

import { repr, shortRepr, truncate } from "./python_text.ts";

const MAX_LENGTH = 200;
const CUTOFF = 0.5;

/** The name that `name` is most likely a misspelling of, ignoring case. */
export function nearestName(name: string, names: Iterable<string>): string | null {
  const byLowerCase = new Map<string, string>();
  for (const candidate of names) {
    const lower = candidate.toLowerCase();
    if (!byLowerCase.has(lower)) byLowerCase.set(lower, candidate);
  }
  const word = [...truncate(name, MAX_LENGTH).toLowerCase()];
  const positions = positionsByCharacter(word);
  let best: { ratio: number; lower: string } | null = null;
  for (const lower of byLowerCase.keys()) {
    const ratio = similarity([...lower], word, positions);
    if (ratio < CUTOFF) continue;
    // difflib compares (ratio, name) pairs, so equal ratios go to the later name.
    if (best === null || ratio > best.ratio || (ratio === best.ratio && lower > best.lower)) best = { ratio, lower };
  }
  return best === null ? null : byLowerCase.get(best.lower)!;
}

/** "Unknown mesh axis 'modle'. Did you mean 'model'? Known: data, model." */
export function unknownNameText(kind: string, name: string, names: readonly string[]): string {
  const nearest = nearestName(name, names);
  const suggestion = nearest === null ? "" : ` Did you mean ${repr(nearest)}?`;
  return `Unknown ${kind} ${shortRepr(name)}.${suggestion} Known: ${names.join(", ") || "none"}.`;
}

function positionsByCharacter(word: readonly string[]): Map<string, number[]> {
  const positions = new Map<string, number[]>();
  word.forEach((character, index) => {
    const list = positions.get(character);
    if (list) list.push(index);
    else positions.set(character, [index]);
  });
  // difflib ignores very common characters of long words.
  if (word.length >= 200) {
    const limit = Math.floor(word.length / 100) + 1;
    for (const [character, list] of [...positions]) if (list.length > limit) positions.delete(character);
  }
  return positions;
}

/** difflib's ratio: twice the characters in matching blocks, divided by the length of both. */
function similarity(a: readonly string[], b: readonly string[], positions: Map<string, number[]>): number {
  const total = a.length + b.length;
  return total ? (2 * countMatches(a, b, positions, 0, a.length, 0, b.length)) / total : 1;
}

function countMatches(
  a: readonly string[],
  b: readonly string[],
  positions: Map<string, number[]>,
  aStart: number,
  aStop: number,
  bStart: number,
  bStop: number,
): number {
  const block = longestMatch(a, b, positions, aStart, aStop, bStart, bStop);
  if (block.size === 0) return 0;
  return (
    block.size +
    countMatches(a, b, positions, aStart, block.a, bStart, block.b) +
    countMatches(a, b, positions, block.a + block.size, aStop, block.b + block.size, bStop)
  );
}

function longestMatch(
  a: readonly string[],
  b: readonly string[],
  positions: Map<string, number[]>,
  aStart: number,
  aStop: number,
  bStart: number,
  bStop: number,
): { a: number; b: number; size: number } {
  let best = { a: aStart, b: bStart, size: 0 };
  let lengths = new Map<number, number>();
  for (let i = aStart; i < aStop; i++) {
    const next = new Map<number, number>();
    for (const j of positions.get(a[i]!) ?? []) {
      if (j < bStart) continue;
      if (j >= bStop) break;
      const size = (lengths.get(j - 1) ?? 0) + 1;
      next.set(j, size);
      if (size > best.size) best = { a: i - size + 1, b: j - size + 1, size };
    }
    lengths = next;
  }
  // Characters that were ignored above extend a block that they touch.
  while (best.a > aStart && best.b > bStart && a[best.a - 1] === b[best.b - 1]) {
    best = { a: best.a - 1, b: best.b - 1, size: best.size + 1 };
  }
  while (best.a + best.size < aStop && best.b + best.size < bStop && a[best.a + best.size] === b[best.b + best.size]) {
    best.size += 1;
  }
  return best;
}
