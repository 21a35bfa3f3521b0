// The page of an app that uses the SDK: its title says how the example ended.
import assert from "node:assert/strict";
import { run, tab } from "./browser.mjs";

await run(async (browser) => {
  const page = await tab(browser);
  page.expected = /404/; // the example asks for what does not exist
  await page.goto(process.env.URL + "/");
  await page.waitForFunction("document.title !== ''");
  assert.equal(await page.title(), "ok");
});
