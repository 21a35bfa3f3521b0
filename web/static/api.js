// Requests to the server, and streams of server-sent events.
import { signal } from "./lib.js";

export const base = "/ui/api/v1";

// caller is who is logged in: undefined while that is not known, null for nobody.
export const caller = signal(undefined);

// Problem is an error of the server, with what to do about it.
export class Problem extends Error {
  constructor(status, body) {
    super((body && body.detail) || `The server answered ${status}.`);
    this.status = status;
    this.hint = body && body.hint;
    this.kind = body && body.class;
    this.parts = (body && body.errors) || [];
  }
}

export async function send(method, url, body, options = {}) {
  const headers = { "X-Dashboard": "1", ...(options.headers || {}) };
  const init = { method, headers, credentials: "same-origin", signal: options.signal };
  if (body instanceof Blob) init.body = body;
  else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let resp;
  try {
    resp = await fetch(url, init);
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem(0, { detail: "The server does not answer.", hint: "The page tries again by itself when it is back." });
  }
  if (!resp.ok) {
    const problem = await resp.json().catch(() => null);
    if (resp.status === 401 && !url.endsWith("/login")) caller.value = null;
    throw new Problem(resp.status, problem);
  }
  return resp;
}

async function json(method, path, body, options) {
  const resp = await send(method, base + path, body, options);
  return resp.status === 204 ? null : resp.json();
}

export const get = (path, options) => json("GET", path, undefined, options);
export const post = (path, body = {}) => json("POST", path, body);
export const put = (path, body = {}) => json("PUT", path, body);
export const del = (path) => json("DELETE", path);

export async function login(key) {
  caller.value = await (await send("POST", "/ui/login", { key })).json();
}

export const loginMethods = async () => (await send("GET", "/ui/login/methods")).json();

export async function logout() {
  await send("POST", "/ui/logout", {}).catch(() => {});
  caller.value = null;
}

export async function whoAmI() {
  caller.value = await (await send("GET", "/ui/session")).json();
}

export const query = (o) => {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(o)) {
    if (v === undefined || v === null || v === "") continue;
    for (const x of Array.isArray(v) ? v : [v]) q.append(k, x);
  }
  const s = q.toString();
  return s ? "?" + s : "";
};

const retryAfter = [500, 1000, 2000, 5000, 10000];

// stream calls on(name, data, id) for each event of a path, and connects again
// after an interruption, from where it was. up(true) says that it is connected.
// It ends with an event "end", when the server refuses it, or by the function that
// it returns.
export function stream(path, { on, up = () => {}, failed = () => {}, after = "" }) {
  const abort = new AbortController();
  let last = after;
  (async () => {
    for (let attempt = 0; !abort.signal.aborted; attempt++) {
      try {
        const headers = { Accept: "text/event-stream" };
        if (last) headers["Last-Event-ID"] = last;
        const resp = await send("GET", base + path, undefined, { headers, signal: abort.signal });
        attempt = 0;
        up(true);
        for await (const e of events(resp.body)) {
          if (e.id) last = e.id;
          if (e.name === "error") {
            failed(new Problem(e.data.status, e.data));
            break;
          }
          on(e.name, e.data, e.id);
          if (e.name === "end") return;
        }
      } catch (e) {
        if (abort.signal.aborted) return;
        if (e.status === 410) last = ""; // what is in between is not kept any more
        else if (e.status >= 400 && e.status < 500 && e.status !== 429) {
          failed(e);
          return;
        }
      }
      up(false);
      await new Promise((done) => setTimeout(done, retryAfter[Math.min(attempt, retryAfter.length - 1)]));
    }
  })();
  return () => abort.abort();
}

// events reads server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const e = { name: "message", id: "", text: [] };
        for (const line of rest.slice(0, end).split("\n")) {
          const [, field, data] = /^([a-z]+): ?(.*)$/.exec(line) || [];
          if (field === "event") e.name = data;
          else if (field === "id") e.id = data;
          else if (field === "data") e.text.push(data);
        }
        rest = rest.slice(end + 2);
        if (e.text.length) yield { name: e.name, id: e.id, data: JSON.parse(e.text.join("\n")) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
