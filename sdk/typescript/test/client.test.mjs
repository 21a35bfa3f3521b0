// The hand-written layer, with a server that is a function. Run by hack/sdk.sh check.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ConnectionFailed, MirenError, ProblemError } from "../dist/index.js";

const session = { id: "sb-1", mode: "persistent", state: "running", created_at: "2026-01-01T00:00:00Z" };

function json(status, body, headers = {}) {
  return new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json", ...headers } });
}

function refusal(status, errorClass) {
  return json(status, { status, class: errorClass, detail: "no", hint: "try" }, { "Retry-After": "0" });
}

/** Returns a client whose attempt n, from 1, is answered by answer(n, request), and the list of its requests. */
function connect(answer, options = {}) {
  const requests = [];
  const fetch = async (request, init) => {
    requests.push(request);
    request.text = request.text.bind(request);
    return answer(requests.length, request, init);
  };
  return { client: new Client({ url: "http://server/", apiKey: "key", fetch, ...options }), requests };
}

test("a refused creation is repeated with its key", async () => {
  const { client, requests } = connect((n) => {
    if (n === 1) return refusal(429, "resource_exhausted");
    if (n === 2) throw new TypeError("the connection broke");
    return json(201, session);
  });
  const sandbox = await client.create({ template: "python" });
  assert.equal(sandbox.id, "sb-1");
  assert.equal(requests.length, 3);
  assert.equal(new Set(requests.map((r) => r.headers.get("Idempotency-Key"))).size, 1);
  assert.equal(requests[2].url, "http://server/api/v1/sessions?wait=60");
  assert.equal(requests[2].headers.get("Authorization"), "Bearer key");
  assert.deepEqual(await requests[2].json(), { template: "python" });
});

test("a command that may have run is not repeated", async () => {
  const { client, requests } = connect((n) => (n === 1 ? json(200, session) : refusal(503, "unavailable")));
  const sandbox = await client.get("sb-1");
  await assert.rejects(sandbox.run("true"), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.deepEqual([error.status, error.errorClass, error.hint], [503, "unavailable", "try"]);
    return true;
  });
  assert.equal(requests.length, 2);
});

test("streamed content is sent once, other content again", async () => {
  const { client, requests } = connect((n) => (n === 1 ? json(200, session) : refusal(429, "resource_exhausted")), {
    maxRetries: 1,
  });
  const sandbox = await client.get("sb-1");
  await assert.rejects(sandbox.files.write("file", new Blob(["part"]).stream()), ProblemError);
  assert.equal(requests.length, 2);
  await assert.rejects(sandbox.files.write("file", "all"), ProblemError);
  assert.equal(requests.length, 4);
  assert.equal(await requests[3].text(), "all");
});

test("an error without a problem is an error", async () => {
  const { client } = connect(() => new Response("a proxy's page", { status: 502 }));
  await assert.rejects(client.get("sb-1"), (error) => error instanceof ProblemError && error.errorClass === "");
});

test("a request without an answer ends", async () => {
  const { client, requests } = connect(
    (n, request, { signal }) =>
      new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
    { timeout: 0.05 - 300 },
  );
  await assert.rejects(client.get("sb-1"), ConnectionFailed);
  assert.equal(requests.length, 1);
});

test("a call that its caller ended is not repeated", async () => {
  const caller = new AbortController();
  const { client, requests } = connect(() => {
    caller.abort(new Error("stop"));
    return refusal(503, "unavailable");
  });
  await assert.rejects(client.create({}, { signal: caller.signal }), /stop/);
  assert.equal(requests.length, 1);
});

test("await using ends the sandbox, also one that is gone", async () => {
  const { client, requests } = connect((n) => (n === 1 ? json(200, session) : refusal(404, "not_found")));
  await (await client.get("sb-1"))[Symbol.asyncDispose]();
  assert.equal(requests[1].method, "DELETE");
});

test("address and key are needed", () => {
  assert.throws(() => new Client({ apiKey: "key" }), MirenError);
});

function stream(...events) {
  const text = events.map(([id, event, data]) => `id: ${id}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");
  return new Response(text, { headers: { "Content-Type": "text/event-stream" } });
}

test("a broken stream is continued", async () => {
  const { client, requests } = connect((n) =>
    n === 1
      ? stream(["1-0", "output", { data: "a" }], ["1-0", "new-event", {}])
      : stream(["2-0", "output", { data: "b" }], ["2-0", "end", { id: "exec-1", state: "ended" }]),
  );
  const found = [];
  for await (const { event, data } of client.follow("exec-1")) found.push(event === "output" ? data.data : data.state);
  assert.deepEqual(found, ["a", "b", "ended"]);
  assert.deepEqual(
    requests.map((r) => r.headers.get("Last-Event-ID")),
    [null, "1-0"],
  );
});

test("an error in a stream is thrown", async () => {
  const { client } = connect(() => stream(["", "error", { status: 404, class: "not_found", detail: "no" }]));
  await assert.rejects(client.follow("exec-1").next(), (error) => error.errorClass === "not_found");
});
