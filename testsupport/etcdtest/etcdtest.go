// Package etcdtest starts an etcd with one member for tests: the one that
// `hack/toolchain.sh test` builds, found on the PATH. It listens on loopback and
// keeps its data in a directory of the test; when the test ends, and also when it
// dies, it ends.
package etcdtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/process"
	"miren.dev/runtime/testsupport/wait"
)

// Server is an etcd.
type Server struct {
	Address string // host:port of its clients

	*process.Process
	health string // host:port that says whether it is ready
	t      testing.TB
	path   string
	args   []string
}

// Start starts an etcd with more arguments, such as --max-txn-ops=1000, and waits
// until it serves.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, "http://", args)
}

// StartTLS is Start for one that shows a certificate, and demands one that it has
// signed.
func StartTLS(t testing.TB, cert, key string) *Server {
	t.Helper()
	return start(t, "https://", []string{"--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth"})
}

func start(t testing.TB, scheme string, args []string) *Server {
	t.Helper()
	path, err := exec.LookPath("etcd")
	if err != nil {
		need.Missing(t, "etcd is not built: run hack/toolchain.sh test and put bin/ on the PATH")
	}
	client, peer, metrics := freeAddress(t), freeAddress(t), freeAddress(t)
	s := &Server{Address: client, health: metrics, t: t, path: path, args: append([]string{
		"--name", "test", "--data-dir", t.TempDir(), "--log-level", "error",
		"--listen-client-urls", scheme + client, "--advertise-client-urls", scheme + client, "--listen-metrics-urls", "http://" + metrics,
		"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer, "--initial-cluster", "test=http://" + peer,
	}, args...)}
	s.Run()
	return s
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Run starts it again, with its data, and waits until it serves.
func (s *Server) Run() {
	s.t.Helper()
	s.Process = process.Start(s.t, nil, s.path, s.args...)
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	wait.NoError(s.t, "etcd serves", func() error {
		if s.Ended() {
			s.t.Fatalf("etcd ended: %s", s.Output())
		}
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+s.health+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// Pause stops it, so that it does not answer; Resume continues it.
func (s *Server) Pause()  { _ = s.Signal(syscall.SIGSTOP) }
func (s *Server) Resume() { _ = s.Signal(syscall.SIGCONT) }

// URL is of a store with a prefix of the test's name.
func (s *Server) URL(t testing.TB) string {
	return "etcd://" + s.Address + "/" + strings.NewReplacer("#", "-", "?", "-").Replace(t.Name())
}
