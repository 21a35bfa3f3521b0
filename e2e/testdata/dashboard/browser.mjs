// A headless Chromium on the dashboard of a server, for the tests.
import { createRequire } from "node:module";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import assert from "node:assert/strict";

const require = createRequire(join(process.env.MODULES, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const url = process.env.URL;
export const keys = { admin: process.env.KEY, viewer: process.env.VIEWER_KEY, empty: process.env.EMPTY_KEY };
const patience = 60_000 * Number(process.env.PATIENCE || 1);

const names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
const program = names.flatMap((n) => process.env.PATH.split(":").map((d) => join(d, n))).find((p) => existsSync(p));

export const phone = { width: 375, height: 740 };
export const desktop = { width: 1200, height: 800 };

// problems are what the console of a page said, and what no page may say.
export const problems = [];

export async function open() {
  assert.ok(program, "no Chromium is installed (hack/packages.sh test)");
  const dir = mkdtempSync(join(tmpdir(), "dashboard-"));
  const path = join(dir, "server");
  const forward = createServer((c) => {
    const to = connect(Number(new URL(url).port), new URL(url).hostname);
    c.pipe(to).pipe(c);
    for (const [a, b] of [[c, to], [to, c]]) a.on("error", () => b.destroy());
  });
  await new Promise((done) => forward.listen(path, done));
  forward.unref();
  process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
  return puppeteer.launch({
    executablePath: fileURLToPath(new URL("alone.mjs", import.meta.url)), pipe: true, headless: true, protocolTimeout: patience * 3,
    env: { ...process.env, SERVER_SOCKET: path, CHROMIUM: program },
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--disable-background-networking", "--font-render-hinting=none"],
  });
}

// tab opens a tab with cookies of its own.
export async function tab(browser, { size = desktop, scheme = "light" } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  page.setDefaultNavigationTimeout(patience);
  await page.setViewport({ ...size, isMobile: size.width < 500, hasTouch: size.width < 500 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: "reduce" }]);
  page.on("pageerror", (e) => problems.push("error: " + e.message));
  page.on("console", (m) => {
    if (m.type() === "error" && !page.expected?.test(m.text() + m.location().url)) problems.push(`console: ${m.text()} ${m.location().url ?? ""}`);
  });
  if (process.env.STATIC) await fromDisk(page, process.env.STATIC); // while one changes the pages
  return page;
}

async function fromDisk(page, dir) {
  const types = { js: "text/javascript", css: "text/css", html: "text/html", svg: "image/svg+xml" };
  await page.setRequestInterception(true);
  page.on("request", (r) => {
    const name = new URL(r.url()).pathname.replace(/^\/ui\//, "");
    const file = join(dir, name);
    if (!r.url().startsWith(url + "/ui/") || !name.includes(".") || !existsSync(file)) return r.continue();
    r.respond({ status: 200, contentType: types[name.split(".").pop()] || "text/plain", body: readFileSync(file) });
  });
}

export async function logIn(page, key, to = "") {
  await page.goto(url + "/ui/" + to);
  await page.waitForSelector("#key");
  await page.type("#key", key);
  await page.keyboard.press("Enter");
  await page.waitForSelector("main h1");
  await page.waitForSelector("header.top");
}

// visit opens a page of the interface.
export async function visit(page, to) {
  await page.goto(url + "/ui/" + to);
  await page.waitForSelector("main h1");
}

// text waits until the page has a text.
export async function text(page, wanted, within = "body") {
  const found = (re, flags, sel) => new RegExp(re, flags).test(document.querySelector(sel)?.innerText ?? "");
  const re = wanted instanceof RegExp ? wanted : new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  try {
    await page.waitForFunction(found, {}, re.source, re.flags, within);
  } catch (e) {
    const got = await page.$eval("body", (b) => b.innerText);
    throw new Error(`${page.url()} does not say ${re}: ${e.message}\n${got}`);
  }
}

// click clicks the button or link with a text.
export async function click(page, label) {
  const find = (wanted) => [...document.querySelectorAll("dialog[open] button, dialog[open] a, button, a")].find((e) => e.textContent.trim() === wanted && !e.disabled && e.checkVisibility());
  const h = await page.waitForFunction(find, {}, label).catch(async (e) => {
    throw new Error(`${page.url()} has no button or link "${label}": ${e.message}\n${await page.$eval("body", (x) => x.innerText)}`);
  });
  await h.asElement().click();
}

// accessible checks a page with axe, and that nothing is wider than the screen.
export async function accessible(page, what) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ["violations"] })).violations
    .filter((v) => v.impact === "serious" || v.impact === "critical")
    .map((v) => `${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | ")}`));
  assert.deepEqual(found, [], what);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${what}: ${wide} pixels wider than the screen`);
}

// kept are the pictures in the documentation.
const kept = ["overview-desktop-light", "app-phone-dark", "terminal", "entity-desktop-light"];

// picture writes a screenshot, if that was asked for and the documentation has it.
export async function picture(page, name) {
  const dir = process.env.SCREENSHOTS;
  if (!dir || !kept.includes(name)) return;
  const file = join(dir, name + ".png");
  await page.screenshot({ path: file });
  const size = statSync(file).size;
  assert.ok(size < 100_000, `${file} has ${size} bytes`);
}

// run runs a test, and fails if a page said something.
export async function run(test) {
  const browser = await open();
  try {
    await test(browser);
    assert.deepEqual(problems, []);
    console.log("ok");
  } catch (e) {
    console.error(problems.join("\n"));
    console.error(e.stack);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}
