// A login at an issuer of OpenID Connect, and the page of nodes that an administrator of the
// installation sees.
import { execFileSync } from "node:child_process";
import { accessible, desktop, phone, picture, run, tab, text, url } from "./browser.mjs";

// The browser reaches the server of the dashboard only. This answers for the issuer, whose
// page leads back at once.
async function reachIssuer(page) {
  await page.setRequestInterception(true);
  page.on("request", async (r) => {
    if (!r.url().startsWith(process.env.ISSUER)) return r.continue();
    const got = await fetch(r.url(), { redirect: "manual" });
    await r.respond({ status: got.status, headers: { Location: got.headers.get("location") ?? "" } });
  });
}

await run(async (browser) => {
  for (const [size, width, scheme] of [[desktop, "desktop", "light"], [phone, "phone", "dark"]]) {
    const page = await tab(browser, { size, scheme });
    await reachIssuer(page);
    await page.goto(url + "/ui/nodes");
    await text(page, "Log in at", "main.login a");
    await accessible(page, `login with an issuer, ${width}, ${scheme}`);
    await page.click("main.login a.button");
    await text(page, "Nodes", "h1");
    await text(page, "ready", "table");
    await accessible(page, `nodes, ${width}, ${scheme}`);
    // It follows changes: another administrator cordons the node.
    const node = await page.$eval("table.list a", (a) => a.innerText);
    execFileSync(process.env.R, ["node", "cordon", node]);
    await text(page, "cordoned", "table");
    await page.goto(url + "/ui/");
    await text(page, "cordoned", "main");
    execFileSync(process.env.R, ["node", "uncordon", node]);
    await page.waitForFunction(() => !document.querySelector("main").innerText.includes("cordoned"));
    await page.goto(url + "/ui/nodes");
    await text(page, "ready", "table");
    await page.click("table.list a");
    await text(page, "Architecture", ".facts");
    execFileSync(process.env.R, ["node", "cordon", node]);
    await text(page, "cordoned", ".facts");
    execFileSync(process.env.R, ["node", "uncordon", node]);
    await page.waitForFunction(() => !document.querySelector(".facts").innerText.includes("cordoned"));
    await page.waitForSelector('.plots svg[role=img][aria-label^="Memory"] path.series');
    await text(page, "Disk in use", ".plots");
    await accessible(page, `node, ${width}, ${scheme}`);
    await picture(page, `node-${width}-${scheme}`);
    await page.browserContext().close();
  }
  const page = await tab(browser);
  await page.goto(url + "/ui/?login=refused");
  await text(page, "The login was refused", "[role=alert]");
  await accessible(page, "refused login");
});
