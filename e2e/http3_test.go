package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// watchHTTP3 gives an app a host with a certificate, and asks it again and again by HTTP/3 until
// stop, which returns how many requests failed.
func (s *server) watchHTTP3(t *testing.T, app, address string) (stop func() (failed, all int64)) {
	t.Helper()
	const host = "h3.example.com"
	ca, dir := tlstest.New(t), t.TempDir()
	chain, key := ca.Issue(t, host)
	for name, text := range map[string]string{"cert.pem": chain, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.r(t, "", "route", "set", host, "--app", app)
	s.r(t, dir, "certificate", "set", "h3", "--cert", "cert.pem", "--key", "key.pem")
	tr := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: host}}
	t.Cleanup(func() { tr.Close() })
	c := &http.Client{Transport: tr, Timeout: wait.Limit}
	get := func() error {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+address+"/", nil)
		if err != nil {
			return err
		}
		req.Host = host
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 3 {
			return errors.Join(fmt.Errorf("%s %s", resp.Proto, resp.Status), err)
		}
		return nil
	}
	wait.NoError(t, "an answer by HTTP/3", get, wait.Within(converge))
	var failed, all atomic.Int64
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			all.Add(1)
			if err := get(); err != nil {
				failed.Add(1)
				t.Logf("HTTP/3: %v", err)
			}
		}
	}()
	return func() (int64, int64) {
		close(ended)
		<-done
		return failed.Load(), all.Load()
	}
}
