// Apps and their deployments.
import { html, useEffect, useState } from "../lib.js";
import { get, stream } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Empty, ErrorBox, Facts, Link, Loaded, Log, Page, Search, Table, duration, matches, useLines } from "../parts.js";
import { KeptMetrics, LogSearch } from "./history.js";

const kinds = ["app", "app_version", "deployment", "sandbox_pool", "sandbox", "route"];
const version = (n) => (n ? "v" + n : "–");

export const deploymentRows = (list) => list.map((d) => ({
  key: d.id,
  cells: [html`<${Link} to=${"deployments/" + d.id}>${d.id}<//>`, html`<${Link} to=${"apps/" + d.app}>${d.app}<//>`, html`<${Badge} state=${d.phase} />`, version(d.version), html`<${Ago} at=${d.created_at} />`],
}));

export function AppList() {
  const data = useData(() => get("/apps"), kinds);
  const [text, setText] = useState("");
  return html`<${Page} title="Apps"><${Loaded} of=${data} what="the apps">${({ apps }) => {
    const shown = apps.filter((a) => matches(text, a.name, ...a.hosts));
    if (!apps.length) return html`<${Empty}><p>There are no apps.</p><p><code>r deploy</code> in the folder of an app makes one and deploys it.</p><//>`;
    return html`<${Search} value=${text} set=${setText} label="Search apps" />
      ${shown.length ? html`<${Table} label="Apps" columns=${["App", "Version", "Ready", "Deployment", "Hosts"]} rows=${shown.map((a) => ({
        key: a.id,
        cells: [
          html`<${Link} to=${"apps/" + a.name}>${a.name}<//>`, version(a.version),
          html`<span class=${a.ready < a.wanted ? "warn" : ""}>${a.ready} of ${a.wanted}</span>`,
          html`<${Badge} state=${(a.deployment || a.last_deployment || {}).phase} />`,
          a.hosts.join(", ") || "–",
        ],
      }))} />` : html`<${Empty}><p>No app matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

export function AppPage({ args: [name] }) {
  const data = useData(async () => ({ app: await get("/apps/" + name), deployments: (await get("/deployments?limit=20&app=" + encodeURIComponent(name))).deployments }), kinds, [name]);
  return html`<${Page} title=${name} back=${["apps", "Apps"]}><${Loaded} of=${data}>${({ app, deployments }) => html`
    <${Facts} list=${[
      ["Version", version(app.version)], ["Ready", `${app.ready} of ${app.wanted}`],
      ["Hosts", app.hosts.length ? app.hosts.join(", ") : "–"],
      app.url && ["URL", html`<a href=${app.url} rel="noreferrer">${app.url}</a>`],
      ["Variables", app.variables.length ? app.variables.join(", ") : "none"],
    ]} />
    ${app.deployment && html`<section><h2>Deployment under way</h2><p><${Link} to=${"deployments/" + app.deployment.id}>${app.deployment.id}<//> <${Badge} state=${app.deployment.phase} /></p><${Steps} steps=${app.deployment.steps} /></section>`}
    <section><h2>Services</h2>
      ${app.services.length ? html`<${Table} label="Services" columns=${["Service", "Version", "Ready", "Problem"]} rows=${app.services.map((s) => ({ key: s.name + s.version, cells: [s.name, version(s.version), `${s.ready} of ${s.wanted}`, s.message || "–"] }))} />`
        : html`<${Empty}><p>No version of the app runs.</p><//>`}
    </section>
    ${app.traffic.length > 0 && html`<section><h2>Traffic</h2>
      <${Table} label="Traffic" columns=${["Version", "Share", "Preview", "Ends"]} rows=${app.traffic.map((t) => ({ key: t.preview || "v" + t.version, cells: [version(t.version), t.preview ? "–" : t.weight + " %", t.preview ? `${t.preview} at ${t.host}` : "–", t.expires_at ? new Date(t.expires_at).toLocaleString() : "–"] }))} />
    </section>`}
    <section><h2>Metrics</h2><${KeptMetrics} of=${"apps/" + name} /></section>
    <section><h2>Log</h2><${LogSearch} name=${name} services=${[...new Set(app.services.map((s) => s.name))]} /><${AppLog} name=${name} /></section>
    <section><h2>Sandboxes</h2>
      ${app.containers.length ? html`<${Table} label="Sandboxes" columns=${["Sandbox", "Service", "State", "Made"]} rows=${app.containers.map((c) => ({ key: c.id, cells: [html`<${Link} to=${"sandboxes/" + c.id}>${c.id}<//>`, c.service || "–", html`<${Badge} state=${c.state} /> ${c.reason || ""}`, html`<${Ago} at=${c.created_at} />`] }))} />` : html`<${Empty}><p>It has no sandboxes.</p><//>`}
    </section>
    <section><h2>Deployments</h2>
      ${deployments.length ? html`<${Table} label="Deployments" columns=${["Deployment", "App", "Phase", "Version", "Began"]} rows=${deploymentRows(deployments)} />` : html`<${Empty}><p>It was never deployed.</p><//>`}
    </section>
    <section><h2>Versions</h2>
      ${app.versions.length ? html`<${Table} label="Versions" columns=${["Version", "Commit", "Image", "Made"]} rows=${app.versions.map((v) => ({ key: v.id, cells: [version(v.number) + (v.number === app.version ? " (serves)" : ""), (v.commit || "–").slice(0, 12), html`<code class="cut">${v.image}</code>`, html`<${Ago} at=${v.created_at} />`] }))} />` : html`<${Empty}><p>It has no versions.</p><//>`}
    </section>`}<//><//>`;
}

function AppLog({ name }) {
  const { lines, add, clear } = useLines();
  const [error, setError] = useState(null);
  useEffect(() => stream("/apps/" + name + "/logs/stream?tail=200", {
    on: (_, l) => add({ text: l.text, stderr: l.stream === "stderr", prefix: `${l.service || ""} ${version(l.version)}` }),
    up: (is) => is && clear(), // it begins with the last lines again
    failed: setError,
  }), [name]);
  return html`<${ErrorBox} error=${error} /><${Log} lines=${lines} label=${"Log of " + name} empty="Nothing was printed yet." />`;
}

const marks = { done: "✓", failed: "✗", running: "…", pending: "·", skipped: "–" };

function Steps({ steps }) {
  return html`<ol class="steps">${steps.map((s) => html`<li class=${s.state} key=${s.name}>
    <span aria-hidden="true">${marks[s.state]}</span> ${s.name} <span class="hidden">${s.state}</span>
    <small>${s.started_at && s.ended_at ? duration(new Date(s.ended_at) - new Date(s.started_at)) : ""} ${s.message || ""}</small></li>`)}</ol>`;
}

export function DeploymentPage({ args: [id] }) {
  const [d, set] = useState(null);
  const [error, setError] = useState(null);
  const { lines, add } = useLines();
  useEffect(() => stream("/deployments/" + id + "/stream", {
    on: (name, e) => {
      if (name === "status" || name === "end") set(e);
      else if (name === "build" && (e.text || e.kind === "started")) add({ text: e.text || e.name, prefix: e.kind === "log" ? "" : e.kind, stderr: e.kind === "failed" });
      else if (name === "line") add({ text: e.text, prefix: e.service, stderr: e.stream === "stderr" });
    },
    failed: setError,
  }), [id]);
  return html`<${Page} title=${"Deployment " + id} back=${d ? ["apps/" + d.app, d.app] : ["apps", "Apps"]}>
    <${ErrorBox} error=${error} />
    ${d && html`
      <p role="status"><${Badge} state=${d.phase} /> ${d.kind} of <${Link} to=${"apps/" + d.app}>${d.app}<//> ${version(d.version)}</p>
      <${Steps} steps=${d.steps} />
      ${d.failure && html`<div class="box bad"><p><strong>${d.failure.message}</strong></p>${d.failure.hint && html`<p>${d.failure.hint}</p>`}
        ${d.failure.log_tail && html`<pre>${d.failure.log_tail.join("\n")}</pre>`}</div>`}
      <section><h2>Log of the build and the start</h2><${Log} lines=${lines} label="Log of the deployment" empty="The log of this deployment is empty, or is not kept any more." /></section>
      <${Facts} list=${[["Asked for by", d.requested_by], ["Reason", d.message], ["Commit", d.commit], ["Branch", d.branch], ["Began", html`<${Ago} at=${d.created_at} />`], ["Ended", html`<${Ago} at=${d.ended_at} />`]]} />`}
  <//>`;
}
