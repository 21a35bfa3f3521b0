// Prints how long the overview takes, logged in and with an empty cache, ROUNDS times: milliseconds from the begin of the
// navigation to the first contentful paint, and until the page has its content.
import { keys, logIn, open, tab, url } from "./browser.mjs";

const browser = await open();
try {
  const page = await tab(browser);
  await logIn(page, keys.admin);
  await page.setCacheEnabled(false);
  const took = { paint: [], content: [] };
  for (let n = 0; n < Number(process.env.ROUNDS); n++) {
    await page.goto("about:blank");
    await page.goto(url + "/ui/");
    const content = await page.waitForFunction(() => /Recent deployments/.test(document.querySelector("main")?.innerText ?? "") && performance.now());
    const paint = await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    took.content.push(await content.jsonValue());
    took.paint.push(await paint.jsonValue());
  }
  console.log(JSON.stringify(took));
} finally {
  await browser.close();
}
