// Package pebbletest starts an authority for tests that signs certificates by ACME:
// pebble, with the name server by which it validates, both built by
// `hack/toolchain.sh test` and found on the PATH. They listen on loopback; when the
// test ends, and also when it dies, they end.
package pebbletest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/process"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// Config says how the authority validates and signs.
type Config struct {
	HTTPPort, TLSPort int           // on 127.0.0.1, which every name means
	Life              time.Duration // of certificates; 0: 90 days
}

// Server is an authority.
type Server struct {
	Directory string // its URL
	CAFile    string // with the certificate that signs that of Directory
	DNS       string // URL at which records are set: see Hook

	management string
	client     *http.Client
	t          testing.TB
}

// Start starts an authority and waits until it serves.
func Start(t testing.TB, c Config) *Server {
	t.Helper()
	pebble, err := exec.LookPath("pebble")
	if err != nil {
		need.Missing(t, "pebble is not built: run hack/toolchain.sh test and put bin/ on the PATH")
	}
	dir := t.TempDir()
	ca := tlstest.New(t)
	chain, key := ca.Issue(t, "localhost")
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ports := freePorts(t, 4)
	listen, management, dns, records := ports[0], ports[1], ports[2], ports[3]
	if c.Life == 0 {
		c.Life = 90 * 24 * time.Hour
	}
	address := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": address(listen), "managementListenAddress": address(management),
		"certificate": write("cert.pem", []byte(chain)), "privateKey": write("key.pem", []byte(key)),
		"httpPort": c.HTTPPort, "tlsPort": c.TLSPort, "retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles": map[string]any{"default": map[string]any{"description": "of tests", "validityPeriod": int(c.Life.Seconds())}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	process.Start(t, nil, "pebble-challtestsrv", "-dnsserver", address(dns), "-management", address(records), "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "",
		"-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "")
	// Without authorizations that several orders share: pebble can lock itself up over
	// them.
	process.Start(t, []string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0"}, pebble, "-config", write("config.json", config), "-dnsserver", address(dns))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}}
	t.Cleanup(tr.CloseIdleConnections)
	s := &Server{
		Directory: fmt.Sprintf("https://localhost:%d/dir", listen), CAFile: write("ca.pem", ca.PEM()), DNS: "http://" + address(records),
		management: fmt.Sprintf("https://localhost:%d", management), client: &http.Client{Transport: tr, Timeout: 10 * time.Second}, t: t,
	}
	wait.NoError(t, "pebble serves", func() error {
		if _, err := s.get(s.Directory); err != nil {
			return err
		}
		conn, err := net.Dial("tcp", address(records))
		if err == nil {
			conn.Close()
		}
		return err
	}, wait.Within(time.Minute))
	return s
}

// freePorts returns n different ports on which nothing listens.
func freePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // when all are known, so that none comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (s *Server) get(url string) ([]byte, error) {
	resp, err := s.client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, b)
	}
	return b, err
}

// Roots has the certificate that signs those that it issues.
func (s *Server) Roots() *x509.CertPool {
	s.t.Helper()
	b, err := s.get(s.management + "/roots/0")
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		s.t.Fatalf("root of pebble: %q", b)
	}
	return pool
}

// SetRecord sets the TXT record of a name, and ClearRecord removes those of it.
func (s *Server) SetRecord(ctx context.Context, name, value string) error {
	return s.record(ctx, "/set-txt", map[string]string{"host": name + ".", "value": value})
}

// ClearRecord removes the TXT records of a name.
func (s *Server) ClearRecord(ctx context.Context, name string) error {
	return s.record(ctx, "/clear-txt", map[string]string{"host": name + "."})
}

func (s *Server) record(ctx context.Context, path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.DNS+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return nil
}

// Hook writes a command that sets records, for acme.dns_command, and returns its path.
// It appends its arguments to the file beside it whose name ends with .log.
func (s *Server) Hook() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "dns")
	script := `#!/bin/bash
set -euo pipefail
echo "$*" >>"$0.log"
case $1 in
present) path=set-txt ;;
cleanup) path=clear-txt ;;
esac
body="{\"host\":\"$2.\",\"value\":\"$3\"}"
exec 3<>/dev/tcp/` + strings.Replace(strings.TrimPrefix(s.DNS, "http://"), ":", "/", 1) + `
printf 'POST /%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' "$path" ${#body} "$body" >&3
grep -q ' 200 ' <&3
`
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		s.t.Fatal(err)
	}
	return path
}
