// Login and logout, overview and apps, with an app that is served.
import assert from "node:assert/strict";
import { accessible, click, desktop, keys, logIn, phone, picture, run, tab, text, visit } from "./browser.mjs";

await run(async (browser) => {
  const page = await tab(browser);

  // A wrong key is refused, in words; the page is shown after the right one.
  page.expected = /401|503/;
  await page.goto(process.env.URL + "/ui/apps");
  await page.waitForSelector("#key");
  await accessible(page, "login");
  await picture(page, "login");
  await page.type("#key", "e2b_00");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[role=alert]");
  await page.$eval("#key", (e) => (e.value = ""));
  page.expected = null;
  await page.type("#key", keys.admin);
  await page.keyboard.press("Enter");
  await text(page, "Apps", "h1");
  await text(page, "shop", "table");
  await text(page, "Live", "header");
  assert.equal(await page.evaluate(() => document.cookie + localStorage.length + sessionStorage.length), "00", "scripts see the session");

  // By keyboard: to the overview and back, the search, the help.
  await page.keyboard.press("g");
  await page.keyboard.press("o");
  await text(page, "Overview", "h1");
  await text(page, "Recent deployments");
  await page.keyboard.press("?");
  await text(page, "Keyboard shortcuts", "dialog");
  await accessible(page, "help");
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("a");
  await text(page, "Apps", "h1");
  await page.waitForSelector("[data-search]");
  await page.keyboard.press("/");
  await page.keyboard.type("nothing like it");
  await text(page, "No app matches");
  await page.keyboard.press("Escape");
  await page.waitForSelector("table.list a");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await text(page, "shop", "h1");
  await text(page, "Services");

  // Its kept metrics, and a search in its kept log.
  await text(page, "Memory", ".plots");
  await text(page, "Requests", ".plots");
  await text(page, "p99", ".plots");
  await page.waitForSelector('.plots svg[role=img][aria-label^="Latency"] path.series');
  await page.select("select[aria-label='Time of the plots']", "24h");
  await page.waitForSelector(".plots svg path.series");
  await page.type("input.grep", "no line is like this");
  await click(page, "Search the log");
  await text(page, "0 lines match", "[role=search] ~ [role=status]");
  await page.$eval("input.grep", (e) => e.select());
  await page.type("input.grep", process.env.LOGGED);
  await click(page, "Search the log");
  await text(page, process.env.LOGGED, "[aria-label='Lines of shop that match']");
  await accessible(page, "metrics and search");

  // Each page in each width and scheme.
  for (const [size, width] of [[desktop, "desktop"], [phone, "phone"]]) {
    for (const scheme of ["light", "dark"]) {
      const p = await tab(browser, { size, scheme });
      await logIn(p, keys.admin);
      for (const [to, says] of [["", "Recent deployments"], ["apps", "shop"], ["apps/shop", "Services"]]) {
        await visit(p, to);
        await text(p, says);
        await accessible(p, `${to || "overview"}, ${width}, ${scheme}`);
        if (to !== "apps") await picture(p, `${to.replaceAll("/", "-") || "overview"}-${width}-${scheme}`);
      }
      await p.browserContext().close();
    }
  }

  // The phone has a menu.
  const p = await tab(browser, { size: phone });
  await logIn(p, keys.admin);
  await click(p, "Menu");
  await click(p, "Apps");
  await text(p, "Apps", "h1");

  // An app that is not there, and logout.
  // Until the end: the page asks again. Logout may end a stream before its answer, and come before a request.
  page.expected = /401|404|503/;
  await visit(page, "apps/none");
  await text(page, 'no app "none"', "[role=alert]");
  await click(page, "Log out");
  await page.waitForSelector("#key");
  await page.goto(process.env.URL + "/ui/apps");
  await page.waitForSelector("#key");
});
