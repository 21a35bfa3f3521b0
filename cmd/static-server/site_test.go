package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSite(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"index.html": "home", "style.css": "body{}", "about.html": "about", "docs/index.html": "docs", "docs/a.txt": "a",
		".env": "secret", ".well-known/x": "known", "sub/only.txt": "only",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path, fallback string
		status         int
		body, kind     string
	}{
		{"/", "", 200, "home", "text/html; charset=utf-8"},
		{"/style.css", "", 200, "body{}", "text/css; charset=utf-8"},
		{"/about", "", 200, "about", "text/html; charset=utf-8"},
		{"/docs", "", 301, "", ""},
		{"/docs/", "", 200, "docs", "text/html; charset=utf-8"},
		{"/docs/a.txt", "", 200, "a", "text/plain; charset=utf-8"},
		{"/sub/", "", 404, "404", ""},
		{"/.env", "", 404, "404", ""},
		{"/.well-known/x", "", 200, "known", ""},
		{"/link", "", 404, "404", ""},
		{"/../../etc/passwd", "", 404, "404", ""},
		{"/nothing", "", 404, "404", ""},
		{"/nothing", "/index.html", 200, "home", ""},
		{"/nothing.js", "/index.html", 404, "404", ""},
	}
	for _, tt := range tests {
		s, err := newSite(dir, tt.fallback)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tt.path, nil))
		if w.Code != tt.status || !strings.HasPrefix(w.Body.String(), tt.body) || tt.kind != "" && w.Header().Get("Content-Type") != tt.kind {
			t.Errorf("%s (fallback %q): %d %q %q", tt.path, tt.fallback, w.Code, w.Body.String(), w.Header().Get("Content-Type"))
		}
	}

	s, err := newSite(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	again := httptest.NewRequest(http.MethodGet, "/", nil)
	again.Header.Set("If-None-Match", w.Header().Get("ETag"))
	w = httptest.NewRecorder()
	if s.ServeHTTP(w, again); w.Code != http.StatusNotModified {
		t.Errorf("unchanged: %d", w.Code)
	}
	w = httptest.NewRecorder()
	if s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil)); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	if err := os.WriteFile(filepath.Join(dir, "404.html"), []byte("gone"), 0o644); err != nil {
		t.Fatal(err)
	}
	w = httptest.NewRecorder()
	if s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nothing", nil)); w.Code != 404 || w.Body.String() != "gone" {
		t.Errorf("own page: %d %q", w.Code, w.Body.String())
	}
}
