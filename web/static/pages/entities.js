// The browser of entities: kinds, a list that follows changes, one entity with
// what it refers to and what refers to it.
import { html, useEffect, useState } from "../lib.js";
import { get, query } from "../api.js";
import { useData, watch } from "../live.js";
import { Ago, Empty, ErrorBox, Facts, Link, Loaded, Page, Search, Table, go, matches } from "../parts.js";

const shown = "entities/";

export function Kinds() {
  const data = useData(() => get("/kinds"));
  const [text, setText] = useState("");
  return html`<${Page} title="Entities"><${Loaded} of=${data} what="the kinds">${({ kinds }) => {
    const list = kinds.filter((k) => matches(text, k.name, k.doc));
    return html`<${Search} value=${text} set=${setText} label="Search kinds" />
      ${list.length ? html`<${Table} label="Kinds of entities" columns=${["Kind", "What it is", "Belongs to"]} rows=${list.map((k) => ({ key: k.name, cells: [html`<${Link} to=${shown + k.name}>${k.name}<//>`, k.doc, k.scope === "cluster" ? "installation" : "project"] }))} />` : html`<${Empty}><p>No kind matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

const phase = (e) => (e.status && (e.status.phase || e.status.state)) || "–";

export function EntityList({ args: [kind] }) {
  const [text, setText] = useState("");
  const [changed, setChanged] = useState({});
  const data = useData(async () => {
    const all = [];
    for (let cursor = ""; all.length < 2000; ) {
      const page = await get("/entities" + query({ kind, limit: 500, cursor }));
      all.push(...page.entities);
      if (!(cursor = page.next_cursor)) break;
    }
    return all;
  }, [kind], [kind]);
  useEffect(() => watch([kind], (c) => setChanged((old) => ({ ...old, [c.entity.id]: Date.now() }))), [kind]);
  return html`<${Page} title=${kind} back=${["entities", "Entities"]}><${Loaded} of=${data} what=${kind}>${(list) => {
    if (!list.length) return html`<${Empty}><p>There is no ${kind} in the project.</p><//>`;
    const some = list.filter((e) => matches(text, e.id, e.name, phase(e)));
    return html`<${Search} value=${text} set=${setText} label="Search by id, name or phase" />
      ${some.length ? html`<${Table} label=${kind} columns=${["Id", "Name", "Phase", "Revision", "Made"]} rows=${some.map((e) => ({
        key: e.id, cells: [html`<${Link} to=${`${shown}${kind}/${e.id}`}>${e.id}<//>`, e.name || "–", html`${phase(e)} ${changed[e.id] ? html`<small>changed</small>` : ""}`, e.revision ?? "–", html`<${Ago} at=${e.created_at} />`],
      }))} />` : html`<${Empty}><p>None matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

// prefixes leads from the prefix of an id to its kind.
const prefixes = {
  app: "app", ver: "app_version", bld: "build", dep: "deployment", rt: "route", sb: "sandbox", pool: "sandbox_pool", disk: "disk", node: "node", exec: "execution",
  proj: "project", prj: "project", snap: "snapshot", tpl: "template", tver: "template_version", key: "api_key", prev: "preview", dlease: "deploy_lease",
};
const id = /^([a-z]+)-[a-z0-9]{8,}$/;

// refs returns the ids in an entity, with the path at which each is.
function refs(x, path = "", out = []) {
  if (typeof x === "string") {
    const m = id.exec(x);
    if (m && prefixes[m[1]] && path !== "id") out.push({ path, id: x, kind: prefixes[m[1]] });
  } else if (x && typeof x === "object") for (const [k, v] of Object.entries(x)) refs(v, path ? path + "." + k : k, out);
  return out;
}

const linkKinds = ["app", "app_version", "build", "deployment", "route", "sandbox_pool", "sandbox", "disk", "disk_mount", "snapshot", "execution"];

export function EntityPage({ args: [kind, eid] }) {
  const data = useData(() => get(`/entities/${kind}/${eid}`), [kind], [kind, eid]);
  const back = useData(async () => {
    const lists = await Promise.all(linkKinds.map((k) => get("/entities" + query({ kind: k, limit: 500 })).then((p) => p.entities, () => [])));
    return lists.flat().flatMap((e) => refs({ spec: e.spec, status: e.status }).filter((r) => r.id === eid).map((r) => ({ path: r.path, id: e.id, kind: e.kind, name: e.name })));
  }, [kind], [kind, eid]);
  return html`<${Page} title=${(data.data && data.data.name) || eid} back=${[shown + kind, kind]}><${Loaded} of=${data}>${(e) => {
    const to = refs({ project: e.project, spec: e.spec, status: e.status });
    return html`<${Facts} list=${[["Kind", e.kind], ["Id", e.id], ["Phase", phase(e)], ["Revision", e.revision], ["Made", html`<${Ago} at=${e.created_at} />`]]} />
      <section><h2>Relations</h2><${Graph} at=${e} to=${to} from=${back.data || []} /></section>
      <section><h2>Spec</h2><${Tree} value=${e.spec} /></section>
      <section><h2>Status</h2><${Tree} value=${e.status} /></section>
      ${e.labels && html`<section><h2>Labels</h2><${Tree} value=${e.labels} /></section>`}`;
  }}<//><//>`;
}

function Tree({ value }) {
  return html`<pre class="tree" tabindex="0">${value && Object.keys(value).length ? JSON.stringify(value, null, 2) : "empty"}</pre>`;
}

const rowHeight = 34;
const maxShown = 12;

// Graph shows what refers to an entity on the left, and what it refers to on the
// right. The same is below it as lists of links, for the keyboard and screen readers.
function Graph({ at, to, from }) {
  const left = from.slice(0, maxShown);
  const right = to.slice(0, maxShown);
  if (!left.length && !right.length) return html`<${Empty}><p>It refers to nothing, and nothing refers to it.</p><//>`;
  const h = Math.max(left.length, right.length, 2) * rowHeight + 20;
  const mid = h / 2;
  const y = (list, i) => mid + (i - (list.length - 1) / 2) * rowHeight;
  const Box = ({ x, cy, r, me }) => html`<g class=${me ? "me" : "other"} onClick=${me ? undefined : () => go(`${shown}${r.kind}/${r.id}`)}>
    <rect x=${x - 85} y=${cy - 13} width="170" height="26" rx="5" /><text x=${x} y=${cy + 4} text-anchor="middle">${(r.name || r.id).slice(0, 24)}</text></g>`;
  return html`<svg class="graph" viewBox=${`0 0 720 ${h}`} aria-hidden="true">
      ${left.map((r, i) => html`<path d=${`M175,${y(left, i)} C230,${y(left, i)} 220,${mid} 275,${mid}`} />`)}
      ${right.map((r, i) => html`<path d=${`M445,${mid} C500,${mid} 490,${y(right, i)} 545,${y(right, i)}`} />`)}
      ${left.map((r, i) => html`<${Box} x=${90} cy=${y(left, i)} r=${r} />`)}
      ${right.map((r, i) => html`<${Box} x=${630} cy=${y(right, i)} r=${r} />`)}
      <${Box} x=${360} cy=${mid} r=${at} me />
    </svg>
    <div class="two">
      <div><h3>Refer to it</h3>${from.length ? html`<ul>${from.map((r) => html`<li><${Link} to=${`${shown}${r.kind}/${r.id}`}>${r.name || r.id}<//> <small>${r.kind} · ${r.path}</small></li>`)}</ul>` : html`<p class="dim">Nothing.</p>`}</div>
      <div><h3>It refers to</h3>${to.length ? html`<ul>${to.map((r) => html`<li><${Link} to=${`${shown}${r.kind}/${r.id}`}>${r.id}<//> <small>${r.kind} · ${r.path}</small></li>`)}</ul>` : html`<p class="dim">Nothing.</p>`}</div>
    </div>`;
}
