package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/web"
)

// policy is the Content-Security-Policy of the pages: everything comes from the
// server, and no page of another origin embeds them.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// file is a file as it is sent.
type file struct {
	kind        string
	etag        string
	plain, gzip []byte
}

// files serves the files of the interface. A path that is no file is one of its
// pages, which index.html shows.
type files map[string]*file

func newFiles() (files, error) {
	all := files{}
	src := web.Files()
	err := fs.WalkDir(src, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(src, name)
		if err != nil {
			return err
		}
		kind := mime.TypeByExtension(path.Ext(name))
		switch path.Ext(name) {
		case ".js": // whatever the machine's table of types says
			kind = "text/javascript; charset=utf-8"
		case "":
			kind = "text/plain; charset=utf-8"
		}
		sum := sha256.Sum256(b)
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, _ = w.Write(b) // a buffer takes everything
		_ = w.Close()
		all[name] = &file{kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, b, z.Bytes()}
		return nil
	})
	if err != nil {
		return nil, errs.New(errs.Internal, "files of the dashboard: %w", err)
	}
	return all, nil
}

// ServeHTTP implements http.Handler.
func (s files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix+"/")
	f := s[name]
	if f == nil && path.Ext(name) == "" {
		f = s["index.html"]
	}
	if f == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // asked for again each time; the answer is short
	h.Set("Vary", "Accept-Encoding")
	b := f.plain
	etag := f.etag
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && len(f.gzip) < len(f.plain) {
		b, etag = f.gzip, strings.TrimSuffix(f.etag, `"`)+`-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(b) // the client may have gone
}
