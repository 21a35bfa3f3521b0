package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	ingressserver "miren.dev/runtime/servers/ingress"
	"miren.dev/runtime/testsupport/wait"
)

// TestMetricsIncludeThoseOfTheIngress: a scrape of the server shows the requests
// that the ingress process served, and works without an ingress.
func TestMetricsIncludeThoseOfTheIngress(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	own := prometheus.NewRegistry()
	own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "runtime_own", Help: "Of the server."}, func() float64 { return 1 }))
	page := httptest.NewServer(promhttp.HandlerFor(withIngress(own, socket), promhttp.HandlerOpts{}))
	defer page.Close()
	scrape := func() string {
		resp, err := http.Get(page.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %v\n%s", resp.Status, err, b)
		}
		return string(b)
	}
	if got := scrape(); !strings.Contains(got, "runtime_own 1") || strings.Contains(got, "runtime_ingress") {
		t.Errorf("without an ingress:\n%s", got)
	}

	reg := prometheus.NewRegistry()
	srv, err := ingressserver.New(ingressserver.Config{Addrs: []string{"127.0.0.1:0"}, AdminSocket: socket, Registerer: reg, Gatherer: reg,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	addrs, err := srv.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	wait.For(t, "the request to be counted", func() bool {
		got := scrape()
		return strings.Contains(got, `runtime_ingress_requests_total{app="",code="4xx"} 1`) && strings.Contains(got, "runtime_own 1")
	})
}
