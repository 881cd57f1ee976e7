import assert from "node:assert/strict";
import { test } from "node:test";
import { failureText } from "./passkeys.ts";

test("a cancelled request and the server's own words are told to the person", () => {
  assert.match(failureText(new DOMException("internal text", "NotAllowedError")), /cancelled/);
  assert.match(failureText(new DOMException("", "InvalidStateError")), /already has a passkey/);
  assert.equal(failureText(new Error("The current password is wrong.")), "The current password is wrong.");
  assert.equal(failureText(null), "The passkey could not be used.");
});
