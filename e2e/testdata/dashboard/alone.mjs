#!/usr/bin/env node
// A Chromium in a network namespace of its own, with the server's port and nothing
// else: it gives up requests whenever the machine has another interface, which other
// tests change all the time. Node.js outside forwards the socket SERVER_SOCKET.
import { execFileSync, spawn } from "node:child_process";
import { connect, createServer } from "node:net";
import { fileURLToPath } from "node:url";

const args = process.argv.slice(2);
const stdio = ["inherit", "inherit", "inherit", 3, 4]; // 3 and 4: the commands of puppeteer
let child;
if (process.env.ALONE !== "inside") {
  child = spawn("unshare", ["--net", process.execPath, fileURLToPath(import.meta.url), ...args], { stdio, env: { ...process.env, ALONE: "inside" } });
} else {
  execFileSync("ip", ["link", "set", "lo", "up"]);
  const server = createServer((c) => {
    const to = connect(process.env.SERVER_SOCKET);
    c.pipe(to).pipe(c);
    for (const [a, b] of [[c, to], [to, c]]) a.on("error", () => b.destroy());
  });
  await new Promise((done) => server.listen(Number(new URL(process.env.URL).port), "127.0.0.1", done));
  child = spawn(process.env.CHROMIUM, args, { stdio });
}
child.on("exit", (code) => process.exit(code ?? 1));
for (const s of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(s, () => child.kill(s));
