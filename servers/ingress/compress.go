package ingress

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"golang.org/x/net/http/httpguts"
)

// minCompress is the size from which an answer is compressed, in bytes.
const minCompress = 1024

// compressor negotiates zstd or gzip with a client and compresses what passes the
// filter of relay. It keeps no more than the window of its format.
var compressor = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(minCompress), gzhttp.ContentTypeFilter(shrinks), gzhttp.SetContentType(false))
	if err != nil {
		panic(err) // the options are constant
	}
	return wrap
}()

// relay has send give the head and the body of an answer to the client, by the settings of its route.
func (g *gate) relay(x *exchange, of *backend, re *response, send func() error) (err error) {
	if isSet(g.own.Sticky) {
		g.stick(x, of)
	}
	h := x.w.Header()
	if !isSet(g.own.Compress) || !compressible(x.r, h, re) {
		return send()
	}
	if tag := h.Get("Etag"); strings.HasPrefix(tag, `"`) && x.r.Header["Accept-Encoding"] != nil {
		h.Set("Etag", "W/"+tag) // its bytes are not those that the app tagged
	}
	plain := x.w
	defer func() { x.w = plain }()
	compressor(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		x.w = w
		err = send()
	})).ServeHTTP(plain, x.r)
	return err
}

// compressible reports whether an answer may be compressed for clients that accept
// it.
func compressible(r *http.Request, h http.Header, re *response) bool {
	switch {
	case re.body == nil, re.length >= 0 && re.length < minCompress, re.status == http.StatusPartialContent:
		return false
	case h["Content-Encoding"] != nil, h["Content-Range"] != nil, len(re.trailers) > 0:
		return false
	case httpguts.HeaderValuesContainsToken(h["Cache-Control"], "no-transform"):
		return false
	}
	return shrinks(h.Get("Content-Type"))
}

// shrinks reports whether content of a type is worth compressing. Event streams are
// not: their head must come before their first event.
func shrinks(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	switch t = strings.ToLower(strings.TrimSpace(t)); t {
	case "text/event-stream":
		return false
	case "application/json", "application/javascript", "application/xml", "application/wasm", "application/manifest+json", "application/x-ndjson",
		"image/svg+xml", "image/bmp", "font/ttf", "font/otf", "application/vnd.ms-fontobject", "application/x-javascript":
		return true
	}
	return strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml")
}
