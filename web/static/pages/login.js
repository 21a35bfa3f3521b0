// The login with an API key.
import { html, useEffect, useRef, useState } from "../lib.js";
import { login } from "../api.js";
import { ErrorBox } from "../parts.js";

export function Login() {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const input = useRef(null);
  useEffect(() => {
    document.title = "Log in · Miren Runtime";
    input.current.focus();
  }, []);
  const submit = async (e) => {
    e.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await login(input.current.value);
    } catch (x) {
      setError(x);
      setBusy(false);
      input.current.select();
    }
  };
  return html`<main class="login">
    <h1>Miren Runtime</h1>
    <form onSubmit=${submit}>
      <label for="key">API key</label>
      <input id="key" ref=${input} type="password" autocomplete="current-password" required spellcheck=${false} aria-describedby="key-help" />
      <p id="key-help" class="dim">Make one on the server: <code>r key create NAME --role admin</code>. The key decides the project and what you may do.</p>
      <button type="submit" class="primary" disabled=${busy}>Log in</button>
      <${ErrorBox} error=${error} />
    </form>
  </main>`;
}
