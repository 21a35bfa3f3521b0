// Disks and the audit log.
import { html, useEffect, useState } from "../lib.js";
import { get, query } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Empty, ErrorBox, Facts, Link, Loaded, Page, Search, Table, bytes, matches } from "../parts.js";

export function DiskList() {
  const data = useData(() => get("/volumes"), ["disk"]);
  const [text, setText] = useState("");
  return html`<${Page} title="Disks"><${Loaded} of=${data} what="the disks">${({ volumes }) => {
    if (!volumes.length) return html`<${Empty}><p>There are no disks.</p><p><code>r disk create NAME --size 1GiB</code> makes one. Apps and sandboxes mount it.</p><//>`;
    const shown = volumes.filter((v) => matches(text, v.name, v.state, v.message));
    return html`<${Search} value=${text} set=${setText} label="Search disks" />
      ${shown.length ? html`<${Table} label="Disks" columns=${["Disk", "State", "Size", "Used", "Made"]} rows=${shown.map((v) => ({
        key: v.id, cells: [html`<${Link} to=${"disks/" + v.name}>${v.name}<//>`, html`<${Badge} state=${v.state} />`, bytes(v.size_bytes), bytes(v.used_bytes), html`<${Ago} at=${v.created_at} />`],
      }))} />` : html`<${Empty}><p>No disk matches “${text}”.</p><//>`}`;
  }}<//><//>`;
}

export function DiskPage({ args: [name] }) {
  const data = useData(async () => ({ v: await get("/volumes/" + name), snapshots: (await get("/volumes/" + name + "/snapshots")).snapshots }), ["disk", "disk_snapshot"], [name]);
  return html`<${Page} title=${name} back=${["disks", "Disks"]}><${Loaded} of=${data}>${({ v, snapshots }) => html`
    <${Facts} list=${[["State", html`<${Badge} state=${v.state} />`], ["Size", bytes(v.size_bytes)], ["Used", bytes(v.used_bytes)], ["File system", v.file_system], ["Made", html`<${Ago} at=${v.created_at} />`], ["Entity", html`<${Link} to=${"entities/disk/" + v.id}>${v.id}<//>`]]} />
    ${v.message && html`<div class="box"><p>${v.message}</p></div>`}
    <section><h2>Snapshots</h2>${snapshots.length ? html`<${Table} label="Snapshots" columns=${["Snapshot", "State", "Size", "Taken"]} rows=${snapshots.map((s) => ({ key: s.name, cells: [s.name, html`<${Badge} state=${s.state} />`, bytes(s.size_bytes), html`<${Ago} at=${s.taken_at || s.created_at} />`] }))} />`
      : html`<${Empty}><p>There are no snapshots. <code>r disk snapshot ${name} SNAPSHOT</code> takes one.</p><//>`}</section>`}<//><//>`;
}

export function Audit() {
  const [filter, setFilter] = useState({ actor: "", action: "" });
  const [list, setList] = useState(null);
  const [next, setNext] = useState("");
  const [error, setError] = useState(null);
  const load = async (cursor) => {
    setError(null);
    try {
      const page = await get("/audit" + query({ ...filter, cursor, limit: 100 }));
      setList((old) => (cursor ? [...old, ...page.records] : page.records));
      setNext(page.next_cursor || "");
    } catch (e) {
      setError(e);
    }
  };
  useEffect(() => {
    const t = setTimeout(() => load(""), 250);
    return () => clearTimeout(t);
  }, [filter.actor, filter.action]);
  return html`<${Page} title="Audit" actions=${html`<button type="button" onClick=${() => load("")}>Read again</button>`}>
    <div class="filters"><${Search} value=${filter.actor} set=${(actor) => setFilter({ ...filter, actor })} label="Actor, such as key:default/ci" />
      <input class="search" type="search" aria-label="Action" placeholder="Action, such as sandbox.Sandboxes/Run" value=${filter.action} onInput=${(e) => setFilter({ ...filter, action: e.currentTarget.value })} /></div>
    <${ErrorBox} error=${error} again=${() => load("")} />
    ${list && (list.length ? html`<${Table} label="Audit log" columns=${["Time", "Actor", "Action", "About", "Outcome"]} rows=${list.map((r) => ({
      key: r.id, cells: [html`<${Ago} at=${r.time} />`, r.actor || "–", r.action, r.subject ? `${r.subject_kind || ""} ${r.subject}` : "–", html`<${Badge} state=${r.outcome} />`],
    }))} />` : html`<${Empty}><p>No call is recorded${filter.actor || filter.action ? " that matches" : ""}.</p><//>`)}
    ${next && html`<p><button type="button" onClick=${() => load(next)}>Earlier ones</button></p>`}
  <//>`;
}
