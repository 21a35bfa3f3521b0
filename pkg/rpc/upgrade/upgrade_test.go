package upgrade_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

func TestParseURL(t *testing.T) {
	for s, ok := range map[string]bool{
		"https://runtime.example.com:7444": true, "https://runtime.example.com/": true, "http://127.0.0.1:7444": true, "http://[::1]:7444": true,
		"http://localhost:1": true, "http://runtime.example.com": false, "https://": false, "runtime.example.com:7443": false,
		"https://u:p@runtime.example.com": false, "https://runtime.example.com/api": false, "https://runtime.example.com/?key=x": false, "ftp://h": false,
	} {
		if _, err := upgrade.ParseURL(s); (err == nil) != ok {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestDial: the connection is for a verified server and a valid key only.
func TestDial(t *testing.T) {
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	https := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !upgrade.Wanted(r) || r.Header.Get("Authorization") != "Bearer good" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		nc, err := upgrade.Accept(w)
		if err == nil {
			err = srv.Adopt(nc, rpc.Identity{Name: "a", How: rpc.HowKey, Key: "a"})
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(https.Close)
	base, err := upgrade.ParseURL(https.URL)
	if err != nil {
		t.Fatal(err)
	}
	trusting := https.Client().Transport.(*http.Transport).TLSClientConfig
	dial := func(base *url.URL, cfg *tls.Config, key string) error {
		c, err := rpc.DialBy(t.Context(), base.String(), func(ctx context.Context) (net.Conn, error) {
			return upgrade.Dial(ctx, base, cfg, key)
		}, rpc.ClientOptions{RetryFor: -1})
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(base, trusting, "good"); err != nil {
		t.Error(err)
	}
	if err := dial(base, trusting, "bad"); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("another key: %v", err)
	}
	if err := dial(base, nil, "good"); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("an authority that is not known: %v", err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if base, err = upgrade.ParseURL(gone.URL); err != nil {
		t.Fatal(err)
	}
	if err := dial(base, nil, "good"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("no server: %v", err)
	}
}
