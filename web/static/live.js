// Live data: one stream of the changes of entities for everything on the page.
import { signal, useEffect, useState, useRef } from "./lib.js";
import { stream, query } from "./api.js";

// connected says whether changes arrive; undefined: nothing asks for them.
export const connected = signal(undefined);

const listeners = new Set(); // of {kinds, change, again}
let open = ""; // kinds of the stream
let close = null;
let planned = 0;

function connect() {
  planned = 0;
  const kinds = [...new Set([...listeners].flatMap((l) => l.kinds))].sort();
  const name = kinds.join(" ");
  if (name === open) return;
  if (close) close();
  open = name;
  close = null;
  if (!kinds.length) {
    connected.value = undefined;
    return;
  }
  let before = false;
  close = stream("/entities/stream" + query({ kind: kinds }), {
    on: (_, change) => {
      for (const l of listeners) if (l.kinds.includes(change.entity.kind)) l.change(change);
    },
    up: (is) => {
      connected.value = is;
      if (is) for (const l of listeners) l.again(before);
      before = before || is;
    },
    failed: () => {
      connected.value = false;
    },
  });
}

// watch calls change for each change of entities of some kinds, and again when the
// stream begins or changes may have been missed. It returns how to end that.
export function watch(kinds, change, again = () => {}) {
  const l = { kinds, change, again };
  listeners.add(l);
  if (!planned) planned = setTimeout(connect);
  return () => {
    listeners.delete(l);
    if (!planned) planned = setTimeout(connect);
  };
}

// useData loads data, and again after changes of entities of some kinds. While it
// cannot be loaded, the data before stay, with the error.
export function useData(load, kinds = [], deps = []) {
  const [state, set] = useState({ data: null, error: null, loading: true });
  const run = useRef(null);
  useEffect(() => {
    let stopped = false;
    let busy = false;
    let more = false;
    let timer = 0;
    set({ data: null, error: null, loading: true });
    const once = async () => {
      if (busy) {
        more = true;
        return;
      }
      busy = true;
      try {
        const data = await load();
        if (!stopped) set({ data, error: null, loading: false });
      } catch (error) {
        if (!stopped && error.name !== "AbortError") set((s) => ({ data: s.data, error, loading: false }));
      }
      busy = false;
      if (more && !stopped) {
        more = false;
        soon();
      }
    };
    const soon = () => {
      if (!timer && !stopped) {
        timer = setTimeout(() => {
          timer = 0;
          once();
        }, 200);
      }
    };
    run.current = once;
    once();
    const end = kinds.length ? watch(kinds, soon, soon) : null;
    return () => {
      stopped = true;
      clearTimeout(timer);
      if (end) end();
    };
  }, deps);
  return { ...state, reload: () => run.current && run.current() };
}
