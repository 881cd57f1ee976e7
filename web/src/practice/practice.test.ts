import assert from "node:assert/strict";
import { test } from "node:test";
import { unsavedText } from "./draft_saving.ts";
import { localTimeText } from "./local_times.ts";
import { clampPercent } from "./pane_sizes.ts";

test("a text that the server never got is restored", () => {
  const stored = JSON.stringify({ source: "x = 2", base: "x = 1" });
  assert.equal(unsavedText(stored, "x = 1"), "x = 2");
});

test("a text is not restored over a newer one of the server", () => {
  const stored = JSON.stringify({ source: "x = 2", base: "x = 1" });
  assert.equal(unsavedText(stored, "x = 3"), null);
  assert.equal(unsavedText(stored, "x = 2"), null);
  assert.equal(unsavedText(null, "x = 1"), null);
  assert.equal(unsavedText("{", "x = 1"), null);
});

test("a pane stays within its limits", () => {
  assert.equal(clampPercent(10, 25, 75), 25);
  assert.equal(clampPercent(46.04, 25, 75), 46);
  assert.equal(clampPercent(99, 25, 75), 75);
});

test("a time of today is shown without its date", () => {
  const now = new Date(2026, 10, 18, 15, 0);
  assert.equal(localTimeText(new Date(2026, 10, 18, 14, 3), now, "en-GB"), "today 14:03");
  assert.equal(localTimeText(new Date(2026, 10, 17, 14, 3), now, "en-GB"), "17 Nov 2026 14:03");
});
