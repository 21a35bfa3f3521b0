// Plots of the kept metrics of an app or a node, and the search of the kept log of an app.
import { html, useEffect, useState } from "../lib.js";
import { get, query } from "../api.js";
import { Empty, ErrorBox, Log, bytes } from "../parts.js";

const W = 560;
const H = 120;
const number = (n) => (n >= 100 ? Math.round(n).toString() : n >= 10 ? n.toFixed(1) : n.toFixed(2));

// formats of the units of the API.
const formats = {
  cores: (n) => number(n),
  bytes,
  "bytes/s": (n) => bytes(n) + "/s",
  "requests/s": (n) => number(n) + "/s",
  seconds: (n) => (n < 1 ? number(n * 1000) + " ms" : number(n) + " s"),
  count: (n) => number(n),
};

const ranges = { "1h": [3600, "Last hour"], "6h": [21600, "Last 6 hours"], "24h": [86400, "Last day"], "7d": [604800, "Last week"] };
const maxSeries = 6;
const refresh = 15000;

// path draws values, with a gap where there is none.
function path(values, top) {
  const step = W / Math.max(values.length - 1, 1);
  let d = "";
  let pen = false;
  values.forEach((v, i) => {
    if (v === null) pen = false;
    else {
      d += `${pen ? "L" : "M"}${(i * step).toFixed(1)},${(H - (v / top) * H).toFixed(1)}`;
      if (!pen && (i === values.length - 1 || values[i + 1] === null)) d += "h1";
      pen = true;
    }
  });
  return d;
}

const lastOf = (values) => values.slice(-3).findLast((v) => v !== null) ?? null;
const mostOf = (values) => values.reduce((a, v) => Math.max(a, v ?? 0), 0);

// Lines draws series {name, values} of one unit, which have the same times. The
// legend names them with their value: the present one, or that under the pointer.
export function Lines({ title, unit, from, step, series }) {
  const [at, setAt] = useState(null);
  const format = formats[unit] || number;
  const shown = series.slice(0, maxSeries);
  const n = shown[0].values.length;
  const top = Math.max(...shown.map((s) => mostOf(s.values)), 1e-9) * 1.05;
  const move = (e) => {
    const box = e.currentTarget.getBoundingClientRect();
    setAt(Math.max(0, Math.min(n - 1, Math.round(((e.clientX - box.left) / box.width) * (n - 1)))));
  };
  const value = (s) => {
    const v = at === null ? lastOf(s.values) : s.values[at];
    return v === null || v === undefined ? "–" : format(v);
  };
  const time = (i) => new Date(+new Date(from) + i * step * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  const says = shown.map((s) => `${s.name || title} ${lastOf(s.values) === null ? "no value" : format(lastOf(s.values))}, at most ${format(mostOf(s.values))}`).join("; ");
  return html`<figure class="plot lines"><figcaption>${title}${at === null ? "" : html` <span class="dim">${time(at)}</span>`}</figcaption>
    <svg viewBox=${`0 0 ${W} ${H}`} preserveAspectRatio="none" role="img" aria-label=${`${title}: ${says}`} onPointerMove=${move} onPointerLeave=${() => setAt(null)}>
      ${[0.25, 0.5, 0.75].map((f) => html`<line x1="0" x2=${W} y1=${H * f} y2=${H * f} class="grid" />`)}
      ${shown.map((s, i) => html`<path class=${"series s" + i} d=${path(s.values, top)} />`)}
      ${at !== null && html`<line class="at" x1=${(at / Math.max(n - 1, 1)) * W} x2=${(at / Math.max(n - 1, 1)) * W} y1="0" y2=${H} />`}
    </svg>
    <div class="scale"><span>${time(0)}</span><span>at most ${format(top / 1.05)}</span><span>${time(n - 1)}</span></div>
    <ul class="legend">${shown.map((s, i) => html`<li><span class=${"key s" + i} aria-hidden="true"></span>${s.name || title} <strong>${value(s)}</strong></li>`)}
      ${series.length > maxSeries && html`<li class="dim">${series.length - maxSeries} more are not drawn</li>`}</ul></figure>`;
}

// plots are what the page of an app or a node shows: a plot for each metric, of latency one for
// each service.
function plots(h) {
  const of = (metric) => h.series.filter((s) => s.metric === metric);
  const services = new Set(h.series.map((s) => s.service));
  const prefix = (s) => (services.size > 1 ? s.service + " " : "");
  const out = [];
  const add = (title, list, name) => list.length && out.push({ title, unit: list[0].unit, series: list.map((s) => ({ name: name(s), values: s.values })) });
  add("CPU (cores)", of("cpu"), (s) => s.service);
  add("Memory", of("memory"), (s) => s.service);
  add("Requests", of("requests"), (s) => prefix(s) + s.label);
  for (const service of services) {
    add("Latency" + (services.size > 1 && service ? " of " + service : ""), of("latency").filter((s) => s.service === service), (s) => s.label);
  }
  add("Received", of("network_in"), (s) => s.service);
  add("Sent", of("network_out"), (s) => s.service);
  add("Disk in use", of("disk_used"), (s) => s.service);
  add("Processes", services.size === 1 && services.has(undefined) ? of("processes") : [], (s) => s.service);
  add("Requests under way", of("in_flight"), (s) => s.service);
  add("Sandboxes", of("sandboxes"), (s) => s.service);
  return out;
}

// KeptMetrics plots the kept metrics of an app or a node: of = "apps/shop".
export function KeptMetrics({ of }) {
  const [range, setRange] = useState("1h");
  const [h, set] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const from = new Date(Date.now() - ranges[range][0] * 1000).toISOString();
        const got = await get("/" + of + "/metrics" + query({ from }));
        if (stopped) return;
        setError(null);
        set(got);
      } catch (e) {
        if (!stopped) setError(e);
      }
      if (!stopped) timer = setTimeout(read, refresh);
    };
    read();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [of, range]);
  const list = h ? plots(h) : [];
  return html`<div class="filters"><select aria-label="Time of the plots" value=${range} onChange=${(e) => setRange(e.currentTarget.value)}>
      ${Object.entries(ranges).map(([key, [, label]]) => html`<option value=${key}>${label}</option>`)}</select></div>
    <${ErrorBox} error=${error} />
    ${list.length ? html`<div class="plots">${list.map((p) => html`<${Lines} key=${p.title} ...${p} from=${h.from} step=${h.step_seconds} />`)}</div>`
      : h && html`<${Empty}><p>There are no samples in this time. The server takes one every few seconds of what runs.</p><//>`}`;
}

const levels = ["", "debug", "info", "warn", "error", "fatal"];
const ages = { "": ["", "Any time"], "15m": [900, "Last 15 minutes"], "1h": [3600, "Last hour"], "24h": [86400, "Last day"], "7d": [604800, "Last week"] };
const version = (n) => (n ? "v" + n : "");

// LogSearch searches the kept log of an app.
export function LogSearch({ name, services }) {
  const [wanted, setWanted] = useState({ grep: "", level: "", service: "", age: "" });
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const change = (key) => (e) => setWanted({ ...wanted, [key]: e.currentTarget.value });
  const search = async (until) => {
    setBusy(true);
    try {
      const age = ages[wanted.age][0];
      const since = age ? new Date(Date.now() - age * 1000).toISOString() : "";
      const got = await get("/apps/" + name + "/logs" + query({ grep: wanted.grep, level: wanted.level, service: wanted.service, since, until }));
      setError(null);
      setFound(until ? { more: got.more, lines: [...got.lines, ...found.lines] } : got);
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  const submit = (e) => {
    e.preventDefault();
    search("");
  };
  const option = (value, label) => html`<option value=${value}>${label}</option>`;
  return html`<form class="filters" role="search" aria-label="Search the log" onSubmit=${submit}>
      <input class="grep" type="search" aria-label="Regular expression" placeholder="Regular expression, such as timeout|refused" maxlength="1024" value=${wanted.grep} onInput=${change("grep")} />
      <select aria-label="Level" value=${wanted.level} onChange=${change("level")}>${levels.map((l) => option(l, l ? l + " and worse" : "Any level"))}</select>
      <select aria-label="Time" value=${wanted.age} onChange=${change("age")}>${Object.entries(ages).map(([key, [, label]]) => option(key, label))}</select>
      ${services.length > 1 && html`<select aria-label="Service" value=${wanted.service} onChange=${change("service")}>${["", ...services].map((s) => option(s, s || "Any service"))}</select>`}
      <button class="primary" disabled=${busy}>Search the log</button>
      ${found && html`<button type="button" onClick=${() => setFound(null)}>Close</button>`}
    </form>
    <${ErrorBox} error=${error} />
    ${found && html`<p role="status" class="dim">${found.lines.length} ${found.lines.length === 1 ? "line matches" : "lines match"}${found.more ? ", and earlier ones" : ""}.
      ${found.more && html` <button type="button" class="quiet" disabled=${busy} onClick=${() => search(found.lines[0].at)}>Earlier lines</button>`}</p>
      <${Log} label=${"Lines of " + name + " that match"} empty="No kept line matches." lines=${found.lines.map((l) => ({
        text: l.text, stderr: l.stream === "stderr", prefix: `${new Date(l.at).toLocaleString()} ${l.service || ""} ${version(l.version)}`,
      }))} />`}`;
}
