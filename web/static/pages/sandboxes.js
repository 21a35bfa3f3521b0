// Sandboxes: the list, making one, and one with its terminal and files.
import { html, useEffect, useRef, useState } from "../lib.js";
import { base, del, get, post, query, send } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Button, Dialog, Empty, ErrorBox, Facts, Link, Loaded, Log, Page, Search, Table, bytes, go, matches } from "../parts.js";
import { Terminal } from "./terminal.js";
import { Usage } from "./metrics.js";

const states = ["creating", "running", "pausing", "paused", "ending", "ended", "failed"];
const purposes = ["session", "app", "execution", "pool"];

export async function pages(path, list, most = 2000) {
  const out = [];
  for (let cursor = ""; out.length < most; ) {
    const page = await get(path + query({ limit: 500, cursor }));
    out.push(...page[list]);
    if (!(cursor = page.next_cursor)) break;
  }
  return out;
}

const Choice = ({ label, value, set, options }) => html`<select aria-label=${label} value=${value} onChange=${(e) => set(e.currentTarget.value)}>
  <option value="">${label}: all</option>${options.map((o) => html`<option value=${o}>${o}</option>`)}</select>`;

export function SandboxList() {
  const data = useData(() => pages("/containers", "containers"), ["sandbox"]);
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const [purpose, setPurpose] = useState("");
  const [making, make] = useState(false);
  return html`<${Page} title="Sandboxes" actions=${html`<button type="button" class="primary" onClick=${() => make(true)}>New sandbox</button>`}>
    ${making && html`<${Create} close=${() => make(false)} />`}
    <${Loaded} of=${data} what="the sandboxes">${(list) => {
      if (!list.length) return html`<${Empty}><p>There are no sandboxes.</p><p>“New sandbox” makes one; so do <code>r sandbox run</code> and every app that is deployed.</p><//>`;
      const shown = list.filter((c) => (!state || c.state === state) && (!purpose || c.purpose === purpose) && matches(text, c.id, c.name, c.image, c.service))
        .sort((a, b) => b.created_at.localeCompare(a.created_at));
      return html`<div class="filters"><${Search} value=${text} set=${setText} label="Search sandboxes" />
        <${Choice} label="State" value=${state} set=${setState} options=${states} /><${Choice} label="Purpose" value=${purpose} set=${setPurpose} options=${purposes} /></div>
        ${shown.length ? html`<${Table} label="Sandboxes" columns=${["Sandbox", "Purpose", "State", "Image", "Made"]} rows=${shown.map((c) => ({
          key: c.id,
          cells: [html`<${Link} to=${"sandboxes/" + c.id}>${c.name || c.id}<//>`, c.purpose + (c.service ? " " + c.service : ""), html`<${Badge} state=${c.state} /> ${c.reason || ""}`, html`<span class="cut">${c.image || "–"}</span>`, html`<${Ago} at=${c.created_at} />`],
        }))} />` : html`<${Empty}><p>No sandbox matches.</p><//>`}`;
    }}<//><//>`;
}

function Create({ close }) {
  const templates = useData(() => get("/templates"));
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (e) => {
    e.preventDefault();
    const f = Object.fromEntries(new FormData(e.currentTarget));
    setBusy(true);
    setError(null);
    try {
      const s = await post("/sessions", { template: f.template || undefined, name: f.name || undefined, ttl_seconds: f.ttl ? Number(f.ttl) : undefined });
      close();
      go("sandboxes/" + s.id);
    } catch (x) {
      setError(x);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="New sandbox" close=${close}><form onSubmit=${submit}>
    <${ErrorBox} error=${templates.error} />
    <label for="template">Template</label>
    <select id="template" name="template"><option value="">Debian, without a template</option>${((templates.data || {}).templates || []).map((t) => html`<option value=${t.name}>${t.name}${t.title ? ": " + t.title : ""}</option>`)}</select>
    <label for="name">Name</label><input id="name" name="name" pattern="[a-z0-9]([a-z0-9\\-]*[a-z0-9])?" maxlength="63" placeholder="none" />
    <label for="ttl">It ends after</label>
    <select id="ttl" name="ttl"><option value="3600">an hour</option><option value="86400">a day</option><option value="604800">a week</option><option value="">never</option></select>
    <${ErrorBox} error=${error} />
    <p class="actions"><button type="submit" class="primary" disabled=${busy}>Make it</button><button type="button" onClick=${close}>Cancel</button></p>
  </form><//>`;
}

const tabs = [["terminal", "Terminal"], ["files", "Files"], ["log", "Log"], ["usage", "Usage"]];

export function SandboxPage({ args: [id] }) {
  const data = useData(() => get("/containers/" + id), ["sandbox"], [id]);
  const [tab, setTab] = useState("log");
  return html`<${Page} title=${(data.data && data.data.name) || id} back=${["sandboxes", "Sandboxes"]} actions=${data.data && html`<${Actions} c=${data.data} />`}>
    <${Loaded} of=${data}>${(c) => {
      const alive = c.state === "running" || c.state === "paused";
      const shown = tabs.filter(([t]) => alive || t === "log");
      const at = shown.some(([t]) => t === tab) ? tab : "log";
      return html`<${Facts} list=${[
          ["State", html`<${Badge} state=${c.state} /> ${c.reason || ""}`], ["Purpose", c.purpose], ["Id", c.id], ["Image", html`<span class="cut" title=${c.image}>${c.image || "–"}</span>`],
          ["CPU", c.cpu_millis ? c.cpu_millis / 1000 : "–"], ["Memory", bytes(c.memory_bytes)], ["Made", html`<${Ago} at=${c.created_at} />`],
          c.address && ["Address", c.address], c.ended_at && ["Ended", html`<${Ago} at=${c.ended_at} />`], c.exit_code !== undefined && ["Exit code", c.exit_code],
        ]} />
        ${c.message && html`<div class="box"><p>${c.message}</p></div>`}
        <${Tabs} list=${shown} at=${at} set=${setTab} />
        <div role="tabpanel" id="panel" aria-labelledby=${"tab-" + at}>
          ${at === "terminal" && html`<${Terminal} id=${c.id} />`}
          ${at === "files" && html`<${Files} id=${c.id} />`}
          ${at === "log" && html`<${ContainerLog} c=${c} />`}
          ${at === "usage" && html`<${Usage} id=${c.id} memory=${c.memory_bytes} />`}
        </div>`;
    }}<//><//>`;
}

export function Tabs({ list, at, set }) {
  const key = (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const i = list.findIndex(([t]) => t === at);
    const [next] = list[(i + step + list.length) % list.length];
    set(next);
    document.getElementById("tab-" + next).focus();
  };
  return html`<div class="tabs" role="tablist" onKeyDown=${key}>${list.map(([t, name]) => html`<button type="button" role="tab" id=${"tab-" + t} aria-selected=${String(t === at)} aria-controls="panel" tabindex=${t === at ? 0 : -1} onClick=${() => set(t)}>${name}</button>`)}</div>`;
}

function Actions({ c }) {
  if (c.purpose !== "session") return null;
  const s = "/sessions/" + c.id;
  return html`
    ${c.state === "running" && html`<${Button} action=${() => post(s + "/pause")}>Pause<//>`}
    ${c.state === "paused" && html`<${Button} action=${() => post(s + "/resume")}>Resume<//>`}
    <${Button} kind="danger" confirm=${"Delete this sandbox with its files?"} action=${() => del(s)} done=${() => go("sandboxes")}>Delete<//>`;
}

function ContainerLog({ c }) {
  const [lines, setLines] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let after = 0;
    const more = async () => {
      try {
        for (let first = !after; ; first = false) {
          const page = await get(`/containers/${c.id}/logs` + query({ after: after || undefined, tail: first ? 1000 : undefined }));
          if (stopped) return;
          after = page.next;
          if (page.lines.length) setLines((old) => [...old, ...page.lines.map((l) => ({ text: l.text, stderr: l.stream === "stderr" }))].slice(-2000));
          if (!page.more) break;
        }
        setError(null);
      } catch (e) {
        if (!stopped) setError(e);
      }
      if (!stopped && c.state !== "ended" && c.state !== "failed") timer = setTimeout(more, 2000);
    };
    more();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [c.id, c.state]);
  return html`<${ErrorBox} error=${error} /><${Log} lines=${lines} label="Log of the sandbox" empty="Its main process printed nothing." />`;
}

const join = (dir, name) => (dir.endsWith("/") ? dir : dir + "/") + name;
const parent = (dir) => dir.replace(/\/[^/]+\/?$/, "") || "/";
const content = (id, path) => `/sessions/${id}/files/content` + query({ path });

function Files({ id }) {
  const [dir, setDir] = useState("/");
  const [open, setOpen] = useState(null); // a file
  const data = useData(() => get(`/sessions/${id}/files` + query({ path: dir })), [], [id, dir]);
  const upload = useRef(null);
  const [error, setError] = useState(null);
  const download = async (path, name) => {
    const blob = await (await send("GET", base + content(id, path))).blob();
    const a = document.createElement("a");
    a.href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
    a.download = name;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10000);
  };
  const send_ = async (e) => {
    setError(null);
    try {
      for (const f of e.currentTarget.files) await send("PUT", base + content(id, join(dir, f.name)), f, { headers: { "Content-Type": "application/octet-stream" } });
    } catch (x) {
      setError(x);
    }
    upload.current.value = "";
    data.reload();
  };
  return html`<div class="filters"><button type="button" disabled=${dir === "/"} onClick=${() => setDir(parent(dir))}>Up</button>
      <code>${dir}</code><span class="fill"></span>
      <input class="hidden" type="file" multiple ref=${upload} id="upload" aria-label="Files to upload" tabindex="-1" onChange=${send_} />
      <button type="button" onClick=${() => upload.current.click()}>Upload</button></div>
    <${ErrorBox} error=${error} />
    ${open && html`<${Edit} id=${id} path=${open} close=${() => setOpen(null)} saved=${data.reload} />`}
    <${Loaded} of=${data} what="the files">${({ files, more }) => (files.length ? html`
      <${Table} label=${"Files in " + dir} columns=${["Name", "Size", "Changed", ""]} rows=${files.map((f) => {
        const path = join(dir, f.name);
        return {
          key: f.name,
          cells: [
            f.type === "directory" ? html`<button type="button" class="plain" onClick=${() => setDir(path)}>${f.name}/</button>`
              : f.type === "file" ? html`<button type="button" class="plain" onClick=${() => setOpen(path)}>${f.name}</button>` : f.name + (f.target ? " → " + f.target : ""),
            f.type === "file" ? bytes(f.size_bytes) : "–", html`<${Ago} at=${f.modified_at} />`,
            f.type === "file" ? html`<span class="actions"><${Button} action=${() => download(path, f.name)}>Download<span class="hidden"> ${f.name}</span><//>
              <${Button} kind="danger" confirm=${"Remove " + path + "?"} action=${() => del(`/sessions/${id}/files` + query({ path }))} done=${data.reload}>Remove<span class="hidden"> ${f.name}</span><//></span>` : "",
          ],
        };
      })} />${more && html`<p class="dim">There are more; the list has the first 1024.</p>`}` : html`<${Empty}><p>The directory is empty.</p><//>`)}<//>`;
}

const maxText = 256 * 1024;

function Edit({ id, path, close, saved }) {
  const [text, setText] = useState(null);
  const [note, setNote] = useState("");
  const [error, setError] = useState(null);
  useEffect(() => {
    (async () => {
      const blob = await (await send("GET", base + content(id, path))).blob();
      if (blob.size > maxText) return setNote("The file is too large to be shown: download it.");
      try {
        setText(new TextDecoder("utf-8", { fatal: true }).decode(await blob.arrayBuffer()));
      } catch {
        setNote("The file is not text: download it.");
      }
    })().catch(setError);
  }, [path]);
  const save = async () => {
    setError(null);
    try {
      await send("PUT", base + content(id, path), new Blob([text]), { headers: { "Content-Type": "application/octet-stream" } });
      saved();
      close();
    } catch (x) {
      setError(x);
    }
  };
  return html`<${Dialog} title=${path} close=${close}>
    ${text !== null && html`<textarea class="editor" rows="16" spellcheck=${false} aria-label=${"Content of " + path} value=${text} onInput=${(e) => setText(e.currentTarget.value)}></textarea>`}
    ${note && html`<p>${note}</p>`}<${ErrorBox} error=${error} />
    <p class="actions">${text !== null && html`<button type="button" class="primary" onClick=${save}>Save</button>`}<button type="button" onClick=${close}>Close</button></p><//>`;
}
