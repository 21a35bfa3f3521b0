// What pages are made of.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

// Navigation: the path below /ui/.
const here = () => location.pathname.replace(/^\/ui\/?/, "") + location.search;
export const path = signal(here());
addEventListener("popstate", () => (path.value = here()));

export function go(to, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", "/ui/" + to);
  path.value = here();
  scrollTo(0, 0);
}

export function Link({ to, children, ...rest }) {
  const click = (e) => {
    if (e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
    e.preventDefault();
    go(to);
  };
  return html`<a href=${"/ui/" + to} onClick=${click} ...${rest}>${children}</a>`;
}

// Page has the heading, which gets the focus when the page is opened, so that
// screen readers say where one is.
export function Page({ title, actions, back, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = title + " · Miren Runtime";
    heading.current.focus({ preventScroll: true });
  }, [title]);
  return html`<div class="page">
    ${back && html`<p class="back"><${Link} to=${back[0]}>← ${back[1]}<//></p>`}
    <div class="head"><h1 tabindex="-1" ref=${heading}>${title}</h1>${actions && html`<div class="actions">${actions}</div>`}</div>
    ${children}
  </div>`;
}

const tones = {
  good: ["succeeded", "running", "ready", "done", "ok", "ended ok", "success", "attached", "available"],
  bad: ["failed", "down", "error", "crash", "timeout", "oom"],
  warn: ["canceled", "unknown", "skipped", "ending", "paused", "cordoned", "denied", "permission_denied", "unauthenticated"],
  busy: ["pending", "building", "starting", "shifting", "baking", "draining", "creating", "pausing", "queued", "assigned", "formatting"],
};

export function Badge({ state, label }) {
  let tone = "plain";
  for (const [t, list] of Object.entries(tones)) if (list.includes(state)) tone = t;
  return html`<span class=${"badge " + tone}>${label || state || "–"}</span>`;
}

const units = [["y", 31536000], ["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function duration(ms) {
  if (ms < 1000) return Math.max(0, Math.round(ms)) + " ms";
  const s = ms / 1000;
  for (const [u, n] of units) if (s >= n) return Math.floor(s / n) + " " + u + (u === "min" && s < 600 && s % 60 >= 1 ? ` ${Math.floor(s % 60)} s` : "");
  return "0 s";
}

// now changes each ten seconds, for ages.
const now = signal(Date.now());
setInterval(() => (now.value = Date.now()), 10000);

export function Ago({ at }) {
  if (!at) return "–";
  const ms = now.value - new Date(at);
  return html`<time datetime=${at} title=${new Date(at).toLocaleString()}>${ms < 5000 ? "just now" : duration(ms) + " ago"}</time>`;
}

export function bytes(n) {
  if (n === undefined || n === null) return "–";
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < names.length - 1; i++) n /= 1024;
  return (i && n < 10 ? n.toFixed(1) : Math.round(n)) + " " + names[i];
}

export function ErrorBox({ error, again }) {
  if (!error) return null;
  return html`<div class="box bad" role="alert">
    <p><strong>${error.message}</strong></p>
    ${error.parts && error.parts.map((p) => html`<p>${p.location}: ${p.message}</p>`)}
    ${error.hint && html`<p>${error.hint}</p>`}
    ${again && html`<p><button type="button" onClick=${again}>Try again</button></p>`}
  </div>`;
}

// Loaded shows data, or why there are none.
export function Loaded({ of, children, what }) {
  const slow = useSlow(of.loading);
  return html`
    <${ErrorBox} error=${of.error} again=${of.reload} />
    ${of.data !== null ? children(of.data) : of.loading && slow && html`<p class="dim" role="status">Loading${what ? " " + what : ""} …</p>`}
  `;
}

function useSlow(loading) {
  const [slow, set] = useState(false);
  useEffect(() => {
    set(false);
    if (!loading) return;
    const t = setTimeout(() => set(true), 300);
    return () => clearTimeout(t);
  }, [loading]);
  return slow;
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

// Table has rows of {key, cells}; on narrow screens each row is a card.
export function Table({ label, columns, rows }) {
  return html`<table class="list" aria-label=${label}>
    <thead><tr>${columns.map((c) => html`<th scope="col">${c}</th>`)}</tr></thead>
    <tbody>${rows.map((r) => html`<tr key=${r.key}>${r.cells.map((c, i) => html`<td data-title=${columns[i]}>${c}</td>`)}</tr>`)}</tbody>
  </table>`;
}

// Search is the filter of a list; the key / leads to it.
export function Search({ value, set, label }) {
  return html`<input class="search" type="search" placeholder=${label + "  ( / )"} aria-label=${label} value=${value} data-search
    onInput=${(e) => set(e.currentTarget.value)}
    onKeyDown=${(e) => e.key === "Escape" && (set(""), e.currentTarget.blur())} />`;
}

export const matches = (text, ...fields) =>
  text.toLowerCase().split(/\s+/).every((w) => fields.some((f) => String(f ?? "").toLowerCase().includes(w)));

export function Dialog({ title, close, children }) {
  const ref = useRef(null);
  // Before anyone can type: what is closed takes no focus.
  useLayoutEffect(() => {
    ref.current.showModal();
  }, []);
  return html`<dialog ref=${ref} aria-labelledby="dialog-title" onClose=${close} onClick=${(e) => e.target === ref.current && close()}>
    <div class="inner"><h2 id="dialog-title">${title}</h2>${children}</div>
  </dialog>`;
}

// Button calls an action, which may take its time, and shows its error.
export function Button({ action, confirm, children, kind = "", done }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [asking, ask] = useState(false);
  const run = async () => {
    ask(false);
    setBusy(true);
    setError(null);
    try {
      await action();
      if (done) done();
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  return html`<button type="button" class=${kind} disabled=${busy} onClick=${() => (confirm ? ask(true) : run())}>${children}</button>
    ${asking && html`<${Dialog} title=${confirm} close=${() => ask(false)}>
      <p class="actions"><button type="button" class=${kind || "primary"} onClick=${run}>${children}</button>
      <button type="button" onClick=${() => ask(false)}>Keep it</button></p><//>`}
    ${error && html`<${Dialog} title="It did not work" close=${() => setError(null)}><${ErrorBox} error=${error} />
      <p class="actions"><button type="button" onClick=${() => setError(null)}>Close</button></p><//>`}`;
}

// Facts is a list of names and values.
export const Facts = ({ list }) => html`<dl class="facts">${list.filter((f) => f).map(([n, v]) => html`<div><dt>${n}</dt><dd>${v ?? "–"}</dd></div>`)}</dl>`;

const maxLines = 2000;

// useLines keeps the last lines of a log.
export function useLines() {
  const lines = useRef([]);
  const [, draw] = useState(0);
  const planned = useRef(0);
  const add = (l) => {
    lines.current.push(l);
    if (lines.current.length > maxLines) lines.current.splice(0, lines.current.length - maxLines);
    if (!planned.current) planned.current = setTimeout(() => ((planned.current = 0), draw((n) => n + 1)), 50);
  };
  const clear = () => ((lines.current = []), draw((n) => n + 1));
  return { lines: lines.current, add, clear };
}

// Log shows lines of {prefix, text, stderr}, and stays at the end unless one scrolls up.
export function Log({ lines, label, empty }) {
  const box = useRef(null);
  const stay = useRef(true);
  useEffect(() => {
    if (stay.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return html`<div class="log" ref=${box} role="log" aria-label=${label} tabindex="0"
    onScroll=${(e) => (stay.current = e.currentTarget.scrollTop + e.currentTarget.clientHeight > e.currentTarget.scrollHeight - 30)}>
    ${lines.length ? lines.map((l) => html`<div class=${l.stderr ? "stderr" : ""}>${l.prefix && html`<span class="dim">${l.prefix} </span>`}${l.text}</div>`) : html`<div class="dim">${empty}</div>`}
  </div>`;
}
