// The errors of shardlab.errors: a code and three parts, the same words in the terminal and on the page.

import { quoteText } from "./python_text.ts";

export class LabError extends Error {
  readonly code: string;
  readonly what: string;
  readonly where: string;
  readonly fix: string;

  constructor(code: string, what: string, parts: { where?: string; fix?: string } = {}) {
    super(what);
    this.code = code;
    this.what = quoteText(what);
    this.where = quoteText(parts.where ?? "");
    this.fix = quoteText(parts.fix ?? "");
  }
}
