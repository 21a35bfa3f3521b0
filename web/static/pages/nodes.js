// The machines that run sandboxes, for administrators of the installation. Sandboxes change what is reserved.
import { html, useState } from "../lib.js";
import { get } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Empty, Facts, Link, Loaded, Page, Search, Table, bytes, matches } from "../parts.js";
import { KeptMetrics } from "./history.js";

const cores = (millis) => (millis / 1000).toLocaleString([], { maximumFractionDigits: 1 });

const kinds = ["node", "sandbox"];

// State says whether new sandboxes are placed on a node.
const State = ({ n }) => html`<${Badge} state=${n.state} />${n.cordoned && html` <${Badge} state="cordoned" />`}${n.disk_full && html` <${Badge} state="failed" label="disk full" />`}`;

export function NodeList() {
  const data = useData(() => get("/nodes"), kinds);
  const [text, setText] = useState("");
  return html`<${Page} title="Nodes"><${Loaded} of=${data} what="the nodes">${({ nodes }) => {
    const shown = nodes.filter((n) => matches(text, n.name, n.state, n.hostname, n.arch, n.message));
    return html`<${Search} value=${text} set=${setText} label="Search nodes" />
      ${shown.length ? html`<${Table} label="Nodes" columns=${["Node", "State", "Sandboxes", "CPU reserved", "Memory reserved", "Disk free", "Last report"]} rows=${shown.map((n) => ({
        key: n.id, cells: [html`<${Link} to=${"nodes/" + n.name}>${n.name}<//>`, html`<${State} n=${n} />`, n.sandboxes, `${cores(n.reserved_cpu_millis)} of ${cores(n.cpu_millis)}`,
          `${bytes(n.reserved_memory_bytes)} of ${bytes(n.memory_bytes)}`, bytes(n.disk_free_bytes), html`<${Ago} at=${n.last_seen} />`],
      }))} />` : html`<${Empty}><p>No node matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

export function NodePage({ args: [name] }) {
  const data = useData(() => get("/nodes/" + name), kinds, [name]);
  return html`<${Page} title=${name} back=${["nodes", "Nodes"]}><${Loaded} of=${data}>${(n) => html`
    <${Facts} list=${[["State", html`<${State} n=${n} />`], ["Sandboxes", n.sandboxes], ["CPU reserved", `${cores(n.reserved_cpu_millis)} of ${cores(n.cpu_millis)}`],
      ["Memory reserved", `${bytes(n.reserved_memory_bytes)} of ${bytes(n.memory_bytes)}`], ["Disk free", bytes(n.disk_free_bytes)], ["Architecture", n.arch],
      n.hostname && ["Machine", n.hostname], n.version && ["Version", n.version], n.runner && ["Runner", "yes"], ["Last report", html`<${Ago} at=${n.last_seen} />`]]} />
    ${n.message && html`<div class="box"><p>${n.message}</p></div>`}
    <section><h2>Used by the machine</h2><${KeptMetrics} of=${"nodes/" + n.name} /></section>`}<//><//>`;
}
