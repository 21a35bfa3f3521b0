// Addons: databases and stores that apps use.
import { html, useState } from "../lib.js";
import { get, post } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Empty, ErrorBox, Facts, Link, Loaded, Page, Search, Table, bytes, matches } from "../parts.js";

const engines = { postgres: "PostgreSQL", valkey: "Valkey", mysql: "MariaDB", s3: "Object store (S3)" };
const engine = (a) => `${engines[a.engine] || a.engine} ${a.version || ""}`;

export function AddonList() {
  const data = useData(() => get("/addons"), ["addon"]);
  const [text, setText] = useState("");
  return html`<${Page} title="Addons"><${Loaded} of=${data} what="the addons">${({ addons }) => {
    if (!addons.length) return html`<${Empty}><p>There are no addons.</p><p><code>r addon create postgres NAME --app APP</code> makes a database and gives an app its variables.</p><//>`;
    const shown = addons.filter((a) => matches(text, a.name, a.engine, a.state, a.message));
    return html`<${Search} value=${text} set=${setText} label="Search addons" />
      ${shown.length ? html`<${Table} label="Addons" columns=${["Addon", "Program", "State", "Endpoint", "Made"]} rows=${shown.map((a) => ({
        key: a.id, cells: [html`<${Link} to=${"addons/" + a.name}>${a.name}<//>`, engine(a), html`<${Badge} state=${a.state} /> ${a.message || ""}`, a.endpoint || "–", html`<${Ago} at=${a.created_at} />`],
      }))} />` : html`<${Empty}><p>No addon matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

export function AddonPage({ args: [name] }) {
  const data = useData(() => get("/addons/" + name), ["addon", "addon_attachment", "disk_snapshot"], [name]);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const call = async (path) => {
    setBusy(true);
    setError(null);
    await post("/addons/" + name + path, {}).catch(setError);
    setBusy(false);
  };
  const actions = html`<button type="button" disabled=${busy} onClick=${() => call("/backups")}>Back up now</button>
    <button type="button" disabled=${busy} onClick=${() => call("/rotate")}>Rotate credentials</button>`;
  return html`<${Page} title=${name} back=${["addons", "Addons"]} actions=${actions}><${ErrorBox} error=${error} /><${Loaded} of=${data}>${(a) => html`
    <${Facts} list=${[["Program", engine(a)], ["State", html`<${Badge} state=${a.state} />`], ["Endpoint", a.endpoint || "–"], ["Disk", bytes(a.size_bytes)], ["Memory", bytes(a.memory_bytes)], ["Made", html`<${Ago} at=${a.created_at} />`],
      ["App that runs it", html`<${Link} to=${"apps/" + a.name}>${a.name}<//>`], ["Entity", html`<${Link} to=${"entities/addon/" + a.id}>${a.id}<//>`]]} />
    ${a.message && html`<div class="box"><p>${a.message}</p></div>`}
    <section><h2>Apps that use it</h2>${a.apps.length ? html`<${Table} label="Apps that use it" columns=${["App", "Prefix", "Credential"]} rows=${a.apps.map((u) => ({ key: u.app, cells: [html`<${Link} to=${"apps/" + u.app}>${u.app}<//>`, u.prefix || "–", u.current ? "current" : u.message || "being rolled out"] }))} />`
      : html`<${Empty}><p>No app uses it. <code>r addon attach ${name} --app APP</code> gives an app its variables.</p><//>`}</section>
    <section><h2>Backups</h2>${a.backups.length ? html`<${Table} label="Backups" columns=${["Backup", "State", "Size", "Disk", "Taken"]} rows=${a.backups.map((b) => ({ key: b.volume + b.name, cells: [b.name, html`<${Badge} state=${b.state} />`, bytes(b.size_bytes), html`<${Link} to=${"disks/" + b.volume}>${b.volume}<//>`, html`<${Ago} at=${b.taken_at || b.created_at} />`] }))} />`
      : html`<${Empty}><p>There are no backups. <code>r addon backup ${name} --every 24h</code> makes one each day.</p><//>`}</section>`}<//><//>`;
}
