// Sandboxes with terminal and files, executions, disks, audit and entities; a
// deployment that is followed; a viewer and an empty project.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { accessible, click, desktop, keys, logIn, phone, picture, run, tab, text, url, visit } from "./browser.mjs";

const r = (...args) => new Promise((done, failed) => execFile(process.env.R, args, { cwd: process.env.APP, timeout: 180_000 }, (e, out, err) => (e ? failed(new Error(`r ${args.join(" ")}: ${e.message}\n${out}${err}`)) : done(out))));

// looks checks pages on a desktop, light, and on a phone, dark.
async function looks(browser, list) {
  for (const [size, width, scheme] of [[desktop, "desktop", "light"], [phone, "phone", "dark"]]) {
    const p = await tab(browser, { size, scheme });
    await logIn(p, keys.admin);
    for (const [name, to, says, then] of list) {
      await visit(p, to);
      await text(p, says);
      if (then) await then(p);
      await accessible(p, `${name}, ${width}, ${scheme}`);
      await picture(p, `${name}-${width}-${scheme}`);
    }
    await p.browserContext().close();
  }
}

await run(async (browser) => {
  const page = await tab(browser);
  await logIn(page, keys.admin);

  // Make a sandbox.
  await visit(page, "sandboxes");
  await click(page, "New sandbox");
  await text(page, "Template", "dialog[open]");
  await accessible(page, "new sandbox");
  await page.type("#name", "box");
  await click(page, "Make it");
  await text(page, "box", "h1");
  await text(page, "running", ".facts");
  const box = page.url().split("/").pop();

  // Its terminal: what is typed is executed, at the size of the window.
  await click(page, "Terminal");
  await text(page, "Connected", ".terminal + p");
  await page.keyboard.type("echo $((6*7))-$TERM; stty size\n");
  await text(page, "42-xterm-256color", ".terminal");
  await accessible(page, "terminal");
  await page.keyboard.type("mkdir -p /tmp/t; echo hello >/tmp/t/a.txt; echo made-$((1+1))\n");
  await text(page, "made-2", ".terminal");
  await picture(page, "terminal");
  await page.keyboard.down("Control");
  await page.keyboard.down("Shift");
  await page.keyboard.press("Escape");
  await page.keyboard.up("Shift");
  await page.keyboard.up("Control");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-terminal", "the keyboard leaves the terminal");

  // Its files: read, change, upload, remove.
  await page.keyboard.press("ArrowRight");
  await text(page, "etc/", "table");
  await click(page, "tmp/");
  await click(page, "t/");
  await click(page, "a.txt");
  await page.waitForFunction(() => document.querySelector("dialog[open] textarea")?.value === "hello\n");
  await accessible(page, "file");
  await page.type("dialog textarea", "more\n");
  await click(page, "Save");
  await page.waitForFunction(() => !document.querySelector("dialog"));
  const input = await page.$("#upload");
  await input.uploadFile(new URL("package.json", import.meta.url).pathname);
  await text(page, "package.json", "table");
  await click(page, "Remove package.json");
  await page.waitForSelector("dialog");
  await (await page.waitForSelector("dialog button.danger")).click();
  await page.waitForFunction(() => !document.querySelector("table").innerText.includes("package.json"));
  const written = await r("sandbox", "exec", "box", "--", "cat", "/tmp/t/a.txt");
  assert.equal([...written].sort().join(""), [..."hello\nmore\n"].sort().join(""), "the file that was saved");

  // What it uses.
  await click(page, "Usage");
  await page.waitForFunction(() => document.querySelectorAll(".plot polyline").length >= 2);
  await accessible(page, "usage");

  // Run code.
  await visit(page, "executions");
  if (!process.env.STATIC) await text(page, "Nothing was executed");
  await click(page, "Run code");
  await text(page, "Program", "dialog[open]");
  await page.select("#language", "shell");
  await page.type("#code", "echo from the program");
  await accessible(page, "run code");
  await click(page, "Run it");
  await text(page, "from the program", ".log");
  await text(page, "succeeded", "main");
  const execution = page.url().split("/").pop();

  // A deployment, followed while it goes on.
  await visit(page, "apps");
  const deploy = r("app", "deploy", "--app", "live");
  await click(page, "live"); // it appears by itself
  await text(page, "live", "h1");
  await (await page.waitForSelector('main a[href*="/deployments/"]')).click();
  await text(page, "Deployment dep-", "h1");
  await deploy;
  await text(page, "succeeded", "main p[role=status]");
  await accessible(page, "deployment");
  const deployment = page.url().split("/").pop();
  await click(page, "← live");
  await text(page, "web", "table");
  await text(page, "1 of 1", ".facts");

  // Disks appear by themselves.
  await visit(page, "disks");
  if (!process.env.STATIC) await text(page, "There are no disks.");
  await r("disk", "create", "data", "--size", "64MiB");
  await text(page, "data", "table");
  await click(page, "data");
  await text(page, "There are no snapshots.");

  // Addons too.
  await visit(page, "addons");
  if (!process.env.STATIC) await text(page, "There are no addons.");
  const made = await fetch(new URL("/api/v1/addons", process.env.URL), {
    method: "POST", headers: { "X-API-Key": process.env.KEY, "Content-Type": "application/json" },
    body: JSON.stringify({ name: "cache", engine: "valkey", size_bytes: 64 << 20 }),
  });
  if (made.status !== 201) throw new Error(await made.text());
  await click(page, "cache");
  await text(page, "No app uses it.");
  await text(page, "There are no backups.");

  // Entities: from an app to what refers to it.
  await visit(page, "entities");
  await page.waitForSelector("[data-search]");
  await page.keyboard.press("/");
  await page.keyboard.type("sandbox_pool");
  await click(page, "sandbox_pool");
  await (await page.waitForSelector("table.list a")).click();
  await text(page, "Refer to it");
  await text(page, /spec\.app/);
  await accessible(page, "entity");
  const pool = page.url().split("/ui/")[1];

  await visit(page, "audit");
  await text(page, "sandbox.Files/Write", "table");

  await looks(browser, [
    ["overview", "", "Recent deployments"], ["apps", "apps", "live"], ["app", "apps/live", "Services"], ["deployment", "deployments/" + deployment, "succeeded"],
    ["sandboxes", "sandboxes", "box"], ["sandbox", "sandboxes/" + box, "running"],
    ["files", "sandboxes/" + box, "running", async (p) => {
      await click(p, "Files");
      await text(p, "etc/", "table");
    }],
    ["executions", "executions", execution], ["execution", "executions/" + execution, "from the program"], ["disks", "disks", "data"], ["disk", "disks/data", "Snapshots"],
    ["addons", "addons", "cache"], ["addon", "addons/cache", "Backups"],
    ["audit", "audit", "sandbox.Files/Write"], ["entities", "entities", "sandbox_pool"], ["entity", pool, "Refer to it"],
  ]);

  // A viewer sees it all, and a change is refused in words.
  const viewer = await tab(browser);
  await logIn(viewer, keys.viewer);
  await visit(viewer, "sandboxes/" + box);
  await text(viewer, "running", ".facts");
  viewer.expected = /403/;
  await click(viewer, "Pause");
  await text(viewer, "exec", "dialog [role=alert]");

  // An empty project says what to do.
  const empty = await tab(browser, { size: phone });
  await logIn(empty, keys.empty);
  for (const [to, says] of [["", "Nothing was deployed yet."], ["apps", "There are no apps."], ["sandboxes", "There are no sandboxes."], ["executions", "Nothing was executed"], ["disks", "There are no disks."], ["addons", "There are no addons."], ["entities/app", "There is no app"]]) {
    await visit(empty, to);
    await text(empty, says);
    await accessible(empty, "empty " + to);
  }

  // Another project's sandbox is not shown.
  empty.expected = /403|404/;
  await visit(empty, "sandboxes/" + box);
  await empty.waitForSelector("[role=alert]");

  // Delete the sandbox; the list follows.
  await visit(page, "sandboxes/" + box);
  await click(page, "Delete");
  await (await page.waitForSelector("dialog button.danger")).click();
  await text(page, "Sandboxes", "h1");
});
