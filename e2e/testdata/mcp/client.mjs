// A client of the Model Context Protocol, by the official TypeScript SDK, that a test drives: it reads one request as JSON
// from each line of standard input and answers each with a line. The arguments are the command of a server to start, or
// the URL of a server (http: or ws:).
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceListChangedNotificationSchema, ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const [command, ...args] = process.argv.slice(2);
const http = command.startsWith("http");
const headers = { Authorization: `Bearer ${process.env.MCP_KEY}` };
// The SDK's transport gives the WebSocket of Node, which can send headers, none.
const Plain = globalThis.WebSocket;
globalThis.WebSocket = class extends Plain {
  constructor(url, protocols) { super(url, { protocols, headers }); }
};
const transport = http
  ? new StreamableHTTPClientTransport(new URL(command), { requestInit: { headers } })
  : command.startsWith("ws")
    ? new WebSocketClientTransport(new URL(command))
    : new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
const client = new Client({ name: "e2e", version: "1" });
const answer = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const calls = new Map();
let updated = []; // URIs of notifications; "" for a change of the list
client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => { updated.push(params.uri); });
client.setNotificationHandler(ResourceListChangedNotificationSchema, () => { updated.push(""); });

const operations = {
  connect: async () => {
    await client.connect(transport);
    return { pid: transport.pid ?? 0, server: client.getServerVersion(), capabilities: client.getServerCapabilities(), instructions: client.getInstructions() };
  },
  session: async () => ({ session: transport.sessionId ?? "" }),
  tools: () => client.listTools(),
  resources: () => client.listResources(),
  templates: () => client.listResourceTemplates(),
  read: ({ uri }) => client.readResource({ uri }),
  subscribe: ({ uri }) => client.subscribeResource({ uri }),
  unsubscribe: ({ uri }) => client.unsubscribeResource({ uri }),
  updated: async () => ({ uris: updated.splice(0) }),
  complete: ({ ref, argument, context }) => client.complete({ ref, argument, context }),
  prompts: () => client.listPrompts(),
  prompt: (params) => client.getPrompt(params),
  call: async ({ name, args: given, progress }, id) => {
    const abort = new AbortController();
    calls.set(id, abort);
    const seen = [];
    const onprogress = progress ? (p) => { seen.push(p); answer({ id, progress: p }); } : undefined;
    try {
      const result = await client.callTool({ name, arguments: given }, undefined, { signal: abort.signal, timeout: 900_000, onprogress });
      return { ...result, progress: seen.length };
    } finally {
      calls.delete(id);
    }
  },
  cancel: async ({ call }) => { calls.get(call)?.abort("the test wants it"); return {}; },
  close: async () => {
    if (http) await transport.terminateSession();
    await client.close();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, ...params } = JSON.parse(line);
  operations[op](params, id).then((result) => answer({ id, result }), (err) => answer({ id, error: String(err?.message ?? err) }));
}
