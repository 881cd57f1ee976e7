import assert from "node:assert/strict";
import { test } from "node:test";
import { fromBase64url, toBase64url } from "./base64url.ts";

test("bytes of every length and value come back", () => {
  for (let length = 0; length < 300; length++) {
    const content = Uint8Array.from({ length }, (_, index) => (index * 7 + length) % 256);
    assert.deepEqual(fromBase64url(toBase64url(content.buffer)), content);
  }
});

test("the text is that of Python's urlsafe_b64encode without padding", () => {
  assert.equal(toBase64url(Uint8Array.from([251, 255, 254]).buffer), "-__-");
  assert.equal(toBase64url(Uint8Array.from([1]).buffer), "AQ");
});
