// Executions: the list, running code, and one with its output.
import { html, useEffect, useState } from "../lib.js";
import { get, post, query, stream } from "../api.js";
import { useData } from "../live.js";
import { Ago, Badge, Button, Dialog, Empty, ErrorBox, Facts, Link, Loaded, Log, Page, Search, Table, bytes, duration, go, matches, useLines } from "../parts.js";

const state = (e) => e.outcome || e.state;

export function ExecutionList() {
  const data = useData(() => get("/executions?limit=200"), ["execution"]);
  const [text, setText] = useState("");
  const [running, run] = useState(false);
  return html`<${Page} title="Executions" actions=${html`<button type="button" class="primary" onClick=${() => run(true)}>Run code</button>`}>
    ${running && html`<${RunCode} close=${() => run(false)} />`}
    <${Loaded} of=${data} what="the executions">${({ executions }) => {
      if (!executions.length) return html`<${Empty}><p>Nothing was executed in the last days.</p><p>“Run code” submits a program; so does <code>r execution submit</code>.</p><//>`;
      const shown = executions.filter((e) => matches(text, e.id, e.language, state(e), e.message));
      return html`<${Search} value=${text} set=${setText} label="Search executions" />
        ${shown.length ? html`<${Table} label="Executions" columns=${["Execution", "Language", "State", "Took", "Submitted"]} rows=${shown.map((e) => ({
          key: e.id,
          cells: [html`<${Link} to=${"executions/" + e.id}>${e.id}<//>`, e.language || "–", html`<${Badge} state=${state(e)} />`, e.metrics ? duration(e.metrics.wall_ms) : "–", html`<${Ago} at=${e.created_at} />`],
        }))} />` : html`<${Empty}><p>No execution matches “${text}”.</p><//>`}`;
    }}<//><//>`;
}

const languages = ["python", "javascript", "typescript", "go", "rust", "java", "cpp", "csharp", "shell"];

function RunCode({ close }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (e) => {
    e.preventDefault();
    const f = Object.fromEntries(new FormData(e.currentTarget));
    setBusy(true);
    setError(null);
    try {
      const x = await post("/executions", { language: f.language, code: f.code, timeout_seconds: Number(f.timeout) });
      close();
      go("executions/" + x.id);
    } catch (x) {
      setError(x);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="Run code" close=${close}><form onSubmit=${submit}>
    <label for="language">Language</label><select id="language" name="language">${languages.map((l) => html`<option>${l}</option>`)}</select>
    <label for="code">Program</label><textarea id="code" name="code" class="editor" rows="10" required spellcheck=${false}></textarea>
    <label for="timeout">It is ended after, in seconds</label><input id="timeout" name="timeout" type="number" min="1" max="3600" value="60" />
    <${ErrorBox} error=${error} />
    <p class="actions"><button type="submit" class="primary" disabled=${busy}>Run it</button><button type="button" onClick=${close}>Cancel</button></p></form><//>`;
}

export function ExecutionPage({ args: [id] }) {
  const [x, set] = useState(null);
  const [error, setError] = useState(null);
  const { lines, add } = useLines();
  useEffect(() => {
    const rest = { stdout: "", stderr: "" };
    return stream("/executions/" + id + "/stream", {
      on: (name, e) => {
        if (name === "status" || name === "end") set(e);
        else if (name === "note") add({ text: e.message, prefix: "note" });
        else if (name === "output") {
          const parts = (rest[e.stream] + e.data).split("\n");
          rest[e.stream] = parts.pop();
          for (const text of parts) add({ text, stderr: e.stream === "stderr" });
        }
        if (name === "end") for (const s of ["stdout", "stderr"]) if (rest[s]) add({ text: rest[s], stderr: s === "stderr" });
      },
      failed: setError,
    });
  }, [id]);
  const cancel = x && x.state !== "ended" && html`<${Button} kind="danger" action=${() => post("/executions/" + id + "/cancel")}>Cancel<//>`;
  return html`<${Page} title=${"Execution " + id} back=${["executions", "Executions"]} actions=${cancel}>
    <${ErrorBox} error=${error} />
    ${x && html`<p role="status"><${Badge} state=${state(x)} /> ${x.message || ""}</p>
      <${Facts} list=${[
        ["Language", x.language], ["Attempt", x.attempt], ["Exit code", x.exit_code], ["Submitted", html`<${Ago} at=${x.created_at} />`], ["Ended", html`<${Ago} at=${x.ended_at} />`],
        x.metrics && ["In the queue", duration(x.metrics.queue_ms)], x.metrics && ["Ran", duration(x.metrics.wall_ms)], x.metrics && ["Memory", bytes(x.metrics.memory_bytes)],
      ]} />
      <section><h2>Output</h2><${Log} lines=${lines} label="Output of the program" empty=${x.state === "ended" ? "It printed nothing." : "It has printed nothing yet."} /></section>`}
  <//>`;
}
