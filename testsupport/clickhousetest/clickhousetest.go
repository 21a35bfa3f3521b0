// Package clickhousetest starts ClickHouse's engine for tests: its library, which hack/clickhouse.sh installs, behind a
// handler of its HTTP interface. It listens on loopback and keeps its data in a directory of the test.
package clickhousetest

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/process"
	"miren.dev/runtime/testsupport/wait"
)

// Server is an engine with the database logs.
type Server struct {
	Address string // host:port of HTTP

	python string
	args   []string
	*process.Process
}

// Start starts an engine and waits until it serves.
func Start(t testing.TB) *Server {
	t.Helper()
	root := checkout.Root(t)
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack/clickhouse.sh"))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		need.Missing(t, "hack/clickhouse.sh: ", err, ": ", stderr.String())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Address: address, python: strings.TrimSpace(string(out)), args: []string{filepath.Join(root, "testsupport/clickhousetest/server.py"), host, port, t.TempDir()}}
	s.Run(t)
	s.Query(t, "CREATE DATABASE logs")
	return s
}

// Run starts the engine again after Kill, with its data, and waits until it serves.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	s.Process = process.Start(t, []string{"HOME=" + os.Getenv("HOME"), "PYTHONDONTWRITEBYTECODE=1", "TZ=UTC"}, s.python, s.args...)
	wait.NoError(t, "ClickHouse serves", func() error {
		if s.Ended() {
			t.Fatalf("ClickHouse ended: %s", s.Output())
		}
		conn, err := net.Dial("tcp", s.Address)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// Query runs a statement and returns its answer, in TabSeparated unless it says otherwise.
func (s *Server) Query(t testing.TB, query string) string {
	t.Helper()
	resp, err := http.Post("http://"+s.Address+"/?"+url.Values{"query": {query}}.Encode(), "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %v %s", query, resp.Status, err, b)
	}
	return string(b)
}
