// The overview: what there is, what failed, what is under way.
import { html } from "../lib.js";
import { caller, get } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Empty, Link, Loaded, Page, Table } from "../parts.js";
import { deploymentRows } from "./apps.js";

async function load() {
  const [apps, deployments, containers, executions, volumes, nodes] = await Promise.all([
    get("/apps"), get("/deployments?limit=100"), get("/containers?limit=500"), get("/executions?limit=100"), get("/volumes"), get("/nodes/summary"),
  ]);
  return {
    apps: apps.apps, deployments: deployments.deployments, containers: containers.containers, executions: executions.executions,
    volumes: volumes.volumes, nodes,
  };
}

function Tile({ to, name, n, detail, bad }) {
  const inner = html`<strong>${n}</strong><span>${name}</span><small>${detail}</small>`;
  return html`<li class=${bad ? "tile bad" : "tile"}>${to ? html`<${Link} to=${to}>${inner}<//>` : html`<div>${inner}</div>`}</li>`;
}

const kinds = ["app", "deployment", "sandbox", "sandbox_pool", "execution", "disk"];

export function Overview() {
  const data = useData(load, caller.value && caller.value.installation ? [...kinds, "node"] : kinds);
  return html`<${Page} title="Overview"><${Loaded} of=${data} what="the overview">${(d) => {
    const down = d.apps.filter((a) => a.version && a.ready < a.wanted);
    const running = d.containers.filter((c) => c.state === "running");
    const waiting = d.executions.filter((e) => e.state !== "ended");
    const failed = d.deployments.filter((x) => x.phase === "failed").slice(0, 5);
    const recent = d.deployments.slice(0, 8);
    const n = d.nodes;
    const troubles = [[n.nodes - n.ready, "not ready"], [n.full, "with a full disk"], [n.cordoned, "cordoned"]].filter(([k]) => k > 0).map(([k, what]) => `${k} ${what}`);
    return html`
      <ul class="tiles">
        <${Tile} to="apps" name="Apps" n=${d.apps.length} bad=${down.length} detail=${down.length ? down.length + " not fully ready" : d.apps.length ? "all ready" : "none yet"} />
        <${Tile} to="sandboxes" name="Sandboxes" n=${d.containers.length} detail=${running.length + " running"} />
        <${Tile} to="executions" name="Executions" n=${d.executions.length} detail=${waiting.length + " not ended"} />
        <${Tile} to="disks" name="Disks" n=${d.volumes.length} detail=${d.volumes.filter((v) => v.state === "failed").length + " failed"} />
        <${Tile} to=${caller.value && caller.value.installation ? "nodes" : ""} name="Nodes" n=${n.nodes} bad=${n.ready < n.nodes || n.full} detail=${troubles.join(", ") || "all ready"} />
      </ul>
      ${down.length > 0 && html`<section><h2>Apps that are not fully ready</h2>
        <${Table} label="Apps that are not fully ready" columns=${["App", "Ready"]} rows=${down.map((a) => ({ key: a.id, cells: [html`<${Link} to=${"apps/" + a.name}>${a.name}<//>`, `${a.ready} of ${a.wanted}`] }))} /></section>`}
      <section><h2>Recent deployments</h2>
        ${recent.length ? html`<${Table} label="Recent deployments" columns=${["Deployment", "App", "Phase", "Version", "Began"]} rows=${deploymentRows(recent)} />`
          : html`<${Empty}><p>Nothing was deployed yet.</p><p><code>r deploy</code> in the folder of an app deploys it.</p><//>`}
      </section>
      ${failed.length > 0 && html`<section><h2>Last failures</h2>
        <${Table} label="Last failures" columns=${["Deployment", "App", "Reason", "When"]} rows=${failed.map((x) => ({
          key: x.id,
          cells: [html`<${Link} to=${"deployments/" + x.id}>${x.id}<//>`, x.app, html`<${Badge} state="failed" label=${x.failure ? x.failure.reason : "failed"} /> ${x.failure && x.failure.message}`, html`<${Ago} at=${x.ended_at} />`],
        }))} /></section>`}`;
  }}<//><//>`;
}
