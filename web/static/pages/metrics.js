// Plots of what is used, from readings that the page makes while it is open.
import { html, useEffect, useState } from "../lib.js";
import { get } from "../api.js";
import { ErrorBox, bytes } from "../parts.js";

const W = 560;
const H = 120;

// Plot draws readings {at, value}; text is an alternative to the picture.
export function Plot({ title, readings, format, most }) {
  const last = readings.at(-1);
  const top = Math.max(most || 0, ...readings.map((r) => r.value), 1e-9) * 1.05;
  const from = readings[0] ? readings[0].at : 0;
  const span = last ? Math.max(last.at - from, 60000) : 1;
  const xy = readings.map((r) => `${(((r.at - from) / span) * W).toFixed(1)},${(H - (r.value / top) * H).toFixed(1)}`);
  return html`<figure class="plot"><figcaption>${title}: <strong>${last ? format(last.value) : "–"}</strong></figcaption>
    <svg viewBox=${`0 0 ${W} ${H}`} preserveAspectRatio="none" role="img" aria-label=${`${title}: ${last ? format(last.value) : "no reading yet"}, at most ${format(Math.max(0, ...readings.map((r) => r.value)))} since the page was opened`}>
      ${[0.25, 0.5, 0.75].map((f) => html`<line x1="0" x2=${W} y1=${H * f} y2=${H * f} class="grid" />`)}
      ${xy.length > 1 && html`<polygon class="area" points=${`0,${H} ${xy.join(" ")} ${xy.at(-1).split(",")[0]},${H}`} /><polyline points=${xy.join(" ")} />`}
    </svg><div class="scale"><span>0</span><span>${format(top)}</span></div></figure>`;
}

const maxReadings = 300;

// Usage plots the CPU and the memory of a sandbox.
export function Usage({ id, memory }) {
  const [readings, set] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const s = await get("/containers/" + id + "/stats");
        if (stopped) return;
        setError(null);
        set((old) => [...old, { ...s, at: +new Date(s.at) }].slice(-maxReadings));
      } catch (e) {
        if (!stopped) setError(e);
      }
      if (!stopped) timer = setTimeout(read, 2000);
    };
    read();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [id]);
  const cpu = readings.slice(1).map((r, i) => ({ at: r.at, value: Math.max(0, (r.cpu_ms - readings[i].cpu_ms) / Math.max(r.at - readings[i].at, 1)) }));
  return html`<${ErrorBox} error=${error} />
    <${Plot} title="CPU" readings=${cpu} format=${(n) => n.toFixed(2)} />
    <${Plot} title="Memory" readings=${readings.map((r) => ({ at: r.at, value: r.memory_bytes }))} format=${bytes} most=${memory} />
    <${Plot} title="Processes" readings=${readings.map((r) => ({ at: r.at, value: r.processes }))} format=${(n) => String(Math.round(n))} />
    <p class="dim">A reading every two seconds since this page was opened.</p>`;
}
