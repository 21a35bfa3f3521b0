package httpserve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// records sends the level of each record.
type records struct {
	slog.Handler
	levels chan slog.Level
}

func (r records) Handle(_ context.Context, record slog.Record) error {
	r.levels <- record.Level
	return nil
}

// TestPanicIsAnError has a handler panic, and a client fail its handshake.
func TestPanicIsAnError(t *testing.T) {
	r := records{slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan slog.Level, 10)}
	for _, http2 := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(errors.New("a bug")) }))
		srv.Config.ErrorLog, srv.EnableHTTP2 = ErrorLog(slog.New(r)), http2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		if resp, err := srv.Client().Get(srv.URL); err == nil {
			resp.Body.Close()
			t.Error("the handler that panics has answered")
		}
		if level := wait.Receive(t, "the log of the panic", r.levels); level != slog.LevelError {
			t.Errorf("HTTP/2 %t: the panic is logged as %s", http2, level)
		}
		c, err := tls.DialWithDialer(&net.Dialer{}, "tcp", srv.Listener.Addr().String(), &tls.Config{})
		if err == nil {
			c.Close()
			t.Error("a client without the authority trusts the server")
		}
		if level := wait.Receive(t, "the log of the handshake", r.levels); level != slog.LevelDebug {
			t.Errorf("HTTP/2 %t: the handshake is logged as %s", http2, level)
		}
	}
}
