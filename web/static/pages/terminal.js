// A shell of a sandbox, by WebSocket.
import { html, useEffect, useRef, useState } from "../lib.js";
import { base } from "../api.js";

// The content security policy permits no style elements, which xterm.js makes. In
// their place it gets elements whose content becomes a constructed style sheet.
function withoutStyleElements() {
  const create = Document.prototype.createElement;
  const style = () => {
    const el = create.call(document, "span");
    const sheet = new CSSStyleSheet();
    el.hidden = true;
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    Object.defineProperty(el, "textContent", { set: (css) => sheet.replaceSync(css), get: () => "" });
    Object.defineProperty(el, "sheet", { get: () => sheet });
    el.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
      Element.prototype.remove.call(el);
    };
    return el;
  };
  document.createElement = (tag, ...rest) => (String(tag).toLowerCase() === "style" ? style() : create.call(document, tag, ...rest));
}

function sheet(href) {
  if (document.querySelector(`link[href="${href}"]`)) return;
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = href;
  document.head.append(link);
}

export function Terminal({ id }) {
  const box = useRef(null);
  const [state, setState] = useState("connecting");
  const [turn, again] = useState(0);
  useEffect(() => {
    let stopped = false;
    let end = () => {};
    (async () => {
      withoutStyleElements();
      sheet("/ui/vendor/xterm.css");
      const [{ Terminal: Xterm }, { FitAddon }] = await Promise.all([import("../vendor/xterm.js"), import("../vendor/addon-fit.js")]);
      if (stopped) return;
      const term = new Xterm({
        screenReaderMode: true, cursorBlink: false, fontSize: 14, scrollback: 5000,
        fontFamily: "ui-monospace, Menlo, Consolas, monospace", theme: { background: "#14181d", foreground: "#e4e8ec" },
      });
      const fit = new FitAddon();
      term.loadAddon(fit);
      term.open(box.current);
      fit.fit();
      const ws = new WebSocket(`${location.origin.replace(/^http/, "ws")}${base}/containers/${id}/terminal?rows=${term.rows}&cols=${term.cols}`);
      ws.binaryType = "arraybuffer";
      const size = () => ws.readyState === 1 && ws.send(JSON.stringify({ rows: term.rows, cols: term.cols }));
      const encoder = new TextEncoder();
      let said = false;
      ws.onopen = () => {
        setState("open");
        size();
        term.focus();
      };
      ws.onmessage = ({ data }) => {
        if (typeof data !== "string") return term.write(new Uint8Array(data));
        const m = JSON.parse(data);
        if (m.note) term.write(`\r\n${m.note}\r\n`);
        if (m.error || m.exit_code !== undefined) {
          said = true;
          setState(m.error || `The shell ended with exit code ${m.exit_code}.`);
        }
      };
      ws.onclose = () => !stopped && !said && setState("The connection ended.");
      term.onData((d) => ws.readyState === 1 && ws.send(encoder.encode(d)));
      term.onResize(size);
      // Tab stays in the terminal; this combination leads out of it.
      term.attachCustomKeyEventHandler((e) => {
        if (e.type === "keydown" && e.ctrlKey && e.shiftKey && e.key === "Escape") {
          document.getElementById("tab-terminal").focus();
          return false;
        }
        return true;
      });
      const watch = new ResizeObserver(() => fit.fit());
      watch.observe(box.current);
      end = () => {
        watch.disconnect();
        ws.close();
        term.dispose();
      };
    })().catch((e) => setState(e.message));
    return () => {
      stopped = true;
      end();
    };
  }, [id, turn]);
  const over = state !== "open" && state !== "connecting";
  return html`<div class="terminal" ref=${box} key=${turn} role="application" aria-label="Terminal"></div>
    <p class="dim" role="status">${state === "connecting" ? "Connecting …" : state === "open" ? html`Connected. <kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>Esc</kbd> leaves the terminal.` : state}
      ${over && html` <button type="button" onClick=${() => (setState("connecting"), again(turn + 1))}>New shell</button>`}</p>`;
}
