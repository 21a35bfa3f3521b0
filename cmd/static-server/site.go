package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
)

// site serves a folder and nothing outside it, whatever links the folder has.
type site struct {
	root     *os.Root
	fallback string

	mu    sync.Mutex
	etags map[string]etag // by file name
}

// etag is cached as long as the file's size and time stay the same.
type etag struct {
	size  int64
	mtime int64
	value string
}

func newSite(dir, fallback string) (*site, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &site{root: root, fallback: strings.TrimPrefix(path.Clean("/"+fallback), "/"), etags: map[string]etag{}}, nil
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
	if !hidden(name) {
		if f := s.open(path.Join(name, "index.html")); f != nil {
			defer f.Close()
			// Relative links in the page are relative to the folder.
			if name != "" && !strings.HasSuffix(r.URL.Path, "/") {
				to := url.URL{Path: "/" + name + "/", RawQuery: r.URL.RawQuery}
				http.Redirect(w, r, to.String(), http.StatusMovedPermanently)
				return
			}
			s.serve(w, r, f, path.Join(name, "index.html"))
			return
		}
		for _, n := range []string{name, name + ".html"} {
			if f := s.open(n); f != nil {
				defer f.Close()
				s.serve(w, r, f, n)
				return
			}
		}
	}
	s.missing(w, r)
}

// missing answers for a path that does not exist.
func (s *site) missing(w http.ResponseWriter, r *http.Request) {
	if f := s.open("404.html"); f != nil {
		defer f.Close()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		if r.Method == http.MethodGet {
			_, _ = io.Copy(w, f) // the client may be gone
		}
		return
	}
	// A file that is asked for by its name is missing; only pages fall back.
	if s.fallback != "" && path.Ext(r.URL.Path) == "" {
		if f := s.open(s.fallback); f != nil {
			defer f.Close()
			s.serve(w, r, f, s.fallback)
			return
		}
	}
	http.Error(w, "404 not found", http.StatusNotFound)
}

func hidden(name string) bool {
	for e := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(e, ".") && e != ".well-known" {
			return true
		}
	}
	return false
}

// open opens a regular file, or returns nil.
func (s *site) open(name string) *os.File {
	if name == "" {
		return nil
	}
	info, err := s.root.Stat(name) // before opening: a pipe would block
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := s.root.Open(name)
	if err != nil {
		return nil
	}
	return f
}

func (s *site) serve(w http.ResponseWriter, r *http.Request, f *os.File, name string) {
	info, err := f.Stat()
	if err != nil {
		http.Error(w, "500 cannot read", http.StatusInternalServerError)
		return
	}
	if tag, err := s.etag(f, name, info); err == nil {
		w.Header().Set("ETag", tag)
	}
	w.Header().Set("Cache-Control", "no-cache") // clients may cache it, but must revalidate
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, path.Base(name), info.ModTime(), f)
}

// etag is a hash of the content: versions of an app may have files with the same time.
func (s *site) etag(f *os.File, name string, info os.FileInfo) (string, error) {
	s.mu.Lock()
	e, ok := s.etags[name]
	s.mu.Unlock()
	if ok && e.size == info.Size() && e.mtime == info.ModTime().UnixNano() {
		return e.value, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	e = etag{info.Size(), info.ModTime().UnixNano(), fmt.Sprintf("%q", hex.EncodeToString(h.Sum(nil))[:32])}
	s.mu.Lock()
	s.etags[name] = e
	s.mu.Unlock()
	return e.value, nil
}
