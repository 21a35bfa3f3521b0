// The login with an API key, and by OpenID Connect where the server has that.
import { html, useEffect, useRef, useState } from "../lib.js";
import { login, loginMethods } from "../api.js";
import { ErrorBox, path } from "../parts.js";

// outcomes are what the server says of a login by OpenID Connect that made no session.
const outcomes = {
  refused: ["The login was refused.", "Log in again. If it is refused again, an administrator must add a rule for you; the log of the server says why."],
  away: ["The issuer of the login does not answer.", "Try again in a moment, or log in with a key."],
  failed: ["The login failed.", "The log of the server says why."],
};

// outcome takes the outcome of a login out of the address.
function outcome() {
  const [message, hint] = outcomes[new URLSearchParams(location.search).get("login")] ?? [];
  if (message) history.replaceState(null, "", location.pathname);
  return message ? { message, hint } : null;
}

export function Login() {
  const [error, setError] = useState(outcome);
  const [issuer, setIssuer] = useState("");
  const [busy, setBusy] = useState(false);
  const input = useRef(null);
  useEffect(() => {
    document.title = "Log in · Miren Runtime";
    input.current.focus();
    if (error) path.value = "";
    loginMethods().then((m) => setIssuer(m.oidc || ""), setError);
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
    ${issuer && html`<p><a class="button primary" href=${"/ui/login/begin?return=" + encodeURIComponent(path.value)}>Log in at ${issuer}</a></p>`}
    <form onSubmit=${submit}>
      <label for="key">API key</label>
      <input id="key" ref=${input} type="password" autocomplete="current-password" required spellcheck=${false} aria-describedby="key-help" />
      <p id="key-help" class="dim">Make one on the server: <code>r key create NAME --role admin</code>. The key decides the project and what you may do.</p>
      <button type="submit" class="primary" disabled=${busy}>Log in</button>
      <${ErrorBox} error=${error} />
    </form>
  </main>`;
}
