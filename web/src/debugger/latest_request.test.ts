import assert from "node:assert/strict";
import { test } from "node:test";
import { LatestRequest } from "./latest_request.ts";

/** A server whose answers come when the test wants them. */
function slowServer() {
  const sent: { query: string; answer: (value: string) => void; refuse: (error: Error) => void }[] = [];
  const send = (query: string) => new Promise<string>((answer, refuse) => void sent.push({ query, answer, refuse }));
  return { sent, send };
}

const settle = () => new Promise((resolve) => setTimeout(resolve, 5));

test("of queries that are typed at once only the last is sent", async () => {
  const { sent, send } = slowServer();
  const requests = new LatestRequest(send, 0);
  const answers = ["a", "ab", "abc"].map((query) => requests.request(query));
  await settle();
  assert.deepEqual(sent.map(({ query }) => query), ["abc"]);
  sent[0]!.answer("ABC");
  assert.deepEqual(await Promise.all(answers), [null, null, "ABC"]);
});

test("a query waits for the request under way, whose answer is dropped", async () => {
  const { sent, send } = slowServer();
  const requests = new LatestRequest(send, 0);
  const first = requests.request("a");
  await settle();
  const [second, third] = [requests.request("b"), requests.request("c")];
  await settle();
  assert.deepEqual(sent.map(({ query }) => query), ["a"]);
  sent[0]!.refuse(new Error("too many jobs"));
  assert.equal(await first, null);
  await settle();
  assert.deepEqual(sent.map(({ query }) => query), ["a", "c"]);
  sent[1]!.answer("C");
  assert.deepEqual([await second, await third], [null, "C"]);
});

test("a dropped request is not sent, and the error of the newest one is raised", async () => {
  const { sent, send } = slowServer();
  const requests = new LatestRequest(send, 0);
  const dropped = requests.request("a");
  requests.drop();
  assert.equal(await dropped, null);
  assert.equal(sent.length, 0);
  const failing = requests.request("b");
  await settle();
  sent[0]!.refuse(new Error("no"));
  await assert.rejects(failing, /no/);
});
