package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
)

// browserPage runs the example of the guide in a page, with the packages as npm
// installed them.
const browserPage = `<!doctype html>
<script type="importmap">{"imports": {
	"@miren/runtime": "/modules/@miren/runtime/dist/index.js",
	"openapi-fetch": "/modules/openapi-fetch/dist/index.mjs",
	"eventsource-parser": "/modules/eventsource-parser/dist/index.js",
	"eventsource-parser/stream": "/modules/eventsource-parser/dist/stream.js"
}}</script>
<script type="module">
globalThis.process = { env: { MIREN_API_URL: location.origin, MIREN_API_KEY: "of the proxy" } };
document.title = await import("/example.mjs").then(() => "ok", (e) => "failed: " + (e.stack ?? e));
</script>
`

// browser runs the example of TypeScript in Chromium. The page's server passes calls
// on with the key, as docs/sdk.md says of browsers.
func (p *sdks) browser() {
	p.t.Helper()
	to, err := url.Parse(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/api/", &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("Authorization", "Bearer "+p.key)
		r.Out.Header.Del("Origin")
	}})
	mux.Handle("/modules/", http.StripPrefix("/modules/", http.FileServer(http.Dir(filepath.Join(p.dir, "node_modules")))))
	mux.HandleFunc("/example.mjs", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(p.dir, "example.mjs"))
	})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, browserPage)
	})
	site := httptest.NewServer(mux)
	defer site.Close()
	browse(p.t, "sdk.mjs", site.URL)
}
