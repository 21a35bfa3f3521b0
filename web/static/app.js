// The frame of every page: navigation, login, shortcuts.
import { html, render, useEffect, useState } from "./lib.js";
import { caller, logout, whoAmI } from "./api.js";
import { connected } from "./live.js";
import { Dialog, ErrorBox, Link, Page, go, path } from "./parts.js";
import { Login } from "./pages/login.js";
import { Overview } from "./pages/overview.js";
import { AppList, AppPage, DeploymentPage } from "./pages/apps.js";
import { SandboxList, SandboxPage } from "./pages/sandboxes.js";
import { ExecutionList, ExecutionPage } from "./pages/executions.js";
import { AddonList, AddonPage } from "./pages/addons.js";
import { Audit, DiskList, DiskPage } from "./pages/resources.js";
import { NodeList, NodePage } from "./pages/nodes.js";
import { EntityList, EntityPage, Kinds } from "./pages/entities.js";

// pages: path, name, key after g, component. A page with parameters has no key.
const pages = [
  [/^$/, "Overview", "o", Overview],
  [/^apps$/, "Apps", "a", AppList],
  [/^apps\/([^/]+)$/, "Apps", "", AppPage],
  [/^deployments\/([^/]+)$/, "Apps", "", DeploymentPage],
  [/^sandboxes$/, "Sandboxes", "s", SandboxList],
  [/^sandboxes\/([^/]+)$/, "Sandboxes", "", SandboxPage],
  [/^executions$/, "Executions", "x", ExecutionList],
  [/^executions\/([^/]+)$/, "Executions", "", ExecutionPage],
  [/^disks$/, "Disks", "d", DiskList],
  [/^disks\/([^/]+)$/, "Disks", "", DiskPage],
  [/^addons$/, "Addons", "b", AddonList],
  [/^addons\/([^/]+)$/, "Addons", "", AddonPage],
  [/^nodes$/, "Nodes", "n", NodeList],
  [/^nodes\/([^/]+)$/, "Nodes", "", NodePage],
  [/^audit$/, "Audit", "u", Audit],
  [/^entities$/, "Entities", "e", Kinds],
  [/^entities\/([^/]+)$/, "Entities", "", EntityList],
  [/^entities\/([^/]+)\/([^/]+)$/, "Entities", "", EntityPage],
];

// forInstallation are pages that only roles in all projects may see.
const forInstallation = ["Nodes"];
const may = (who, name) => who.installation || !forInstallation.includes(name);

const paths = {
  Overview: "", Apps: "apps", Sandboxes: "sandboxes", Executions: "executions", Disks: "disks", Addons: "addons", Nodes: "nodes", Audit: "audit", Entities: "entities",
};

function Shortcuts({ close }) {
  const who = caller.value;
  const rows = [["/", "Search this list"], ["j · k", "Next and previous row"], ["?", "This help"], ["Esc", "Close, or leave the search"],
    ...pages.filter((p) => p[2] && may(who, p[1])).map((p) => ["g " + p[2], p[1]])];
  return html`<${Dialog} title="Keyboard shortcuts" close=${close}>
    <table class="keys"><tbody>${rows.map(([k, what]) => html`<tr><td>${k.split(" ").map((x) => (x === "·" ? " " : html`<kbd>${x}</kbd> `))}</td><td>${what}</td></tr>`)}</tbody></table>
    <p class="actions"><button type="button" onClick=${close}>Close</button></p><//>`;
}

// move gives the focus to the first link of the next or previous row.
function move(step) {
  const links = [...document.querySelectorAll("table.list tbody tr")].map((r) => r.querySelector("a,button")).filter((l) => l);
  if (!links.length) return;
  const at = links.findIndex((l) => l.closest("tr").contains(document.activeElement));
  links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + step, 0), links.length - 1)].focus();
}

function useKeys(help) {
  useEffect(() => {
    let prefix = 0;
    const key = (e) => {
      if (e.metaKey || e.ctrlKey || e.altKey || e.defaultPrevented) return;
      if (e.target.closest("input,textarea,select,[contenteditable],.terminal")) return;
      if (document.querySelector("dialog[open]")) return;
      if (prefix && Date.now() - prefix < 1500) {
        prefix = 0;
        const page = pages.find((p) => p[2] === e.key && caller.value && may(caller.value, p[1]));
        if (page) {
          e.preventDefault();
          go(paths[page[1]]);
        }
        return;
      }
      if (e.key === "g") prefix = Date.now();
      else if (e.key === "?") help();
      else if (e.key === "j") move(1);
      else if (e.key === "k") move(-1);
      else if (e.key === "/") {
        const search = document.querySelector("[data-search]");
        if (search) {
          e.preventDefault();
          search.focus();
        }
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
}

function Frame() {
  const [help, setHelp] = useState(false);
  const [menu, setMenu] = useState(false);
  useKeys(() => setHelp(true));
  const at = path.value.split("?")[0].replace(/\/$/, "");
  const page = pages.find(([re]) => re.test(at));
  const who = caller.value;
  useEffect(() => setMenu(false), [at]);
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="top">
      <button type="button" class="menu" aria-expanded=${String(menu)} aria-controls="nav" onClick=${() => setMenu(!menu)}>Menu</button>
      <${Link} to="" class="brand">Miren Runtime<//>
      <span class="project" title="Project">${who.project || "all projects"}</span>
      <span class="fill"></span>
      ${connected.value !== undefined && html`<span class=${"live " + (connected.value ? "on" : "off")} role="status">${connected.value ? "Live" : "Reconnecting …"}</span>`}
      <button type="button" class="quiet" onClick=${() => setHelp(true)} aria-label="Keyboard shortcuts">?</button>
      <button type="button" class="quiet" onClick=${logout} title=${who.name}>Log out</button>
    </header>
    <nav id="nav" aria-label="Pages" class=${menu ? "open" : ""}>
      <ul>${Object.entries(paths).filter(([name]) => may(who, name)).map(([name, to]) => html`<li><${Link} to=${to} aria-current=${page && page[1] === name ? "page" : undefined}>${name}<//></li>`)}</ul>
    </nav>
    <main id="main" tabindex="-1">
      ${page ? html`<${page[3]} key=${at} args=${at.match(page[0]).slice(1).map(decodeURIComponent)} />` : html`<${Page} title="There is no such page"><p><${Link} to="">Overview<//></p><//>`}
    </main>
    ${help && html`<${Shortcuts} close=${() => setHelp(false)} />`}`;
}

function Root() {
  const [error, setError] = useState(null);
  const ask = () => {
    setError(null);
    whoAmI().catch(setError);
  };
  useEffect(ask, []);
  if (error) return html`<main><${ErrorBox} error=${error} again=${ask} /></main>`;
  if (caller.value === undefined) return null;
  return caller.value ? html`<${Frame} />` : html`<${Login} />`;
}

render(html`<${Root} />`, document.getElementById("app"));
