package ingress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/testsupport/wait"
)

func TestMetricsAndAccessLog(t *testing.T) {
	up := upstream(t, says("hi"))
	reg := prometheus.NewRegistry()
	var mu sync.Mutex
	var lines bytes.Buffer
	in := start(t, Config{Registerer: reg, AccessLog: &lockedWriter{mu: &mu, w: &lines},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}})
	in.install(oneApp(up.URL))
	c := client(t)
	for i := range 5 {
		r := request(t, "GET", fmt.Sprintf("%s/path-%d?token=hunter2&bare", in.url, i), testHost)
		r.Header.Set("X-Forwarded-For", "6.6.6.6, 192.0.2.7, 10.1.1.1")
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		get(t, c, in.url, fmt.Sprintf("host-%d", i))
	}
	got := map[string]float64{}
	series := 0
	wait.For(t, "all requests are counted", func() bool {
		fams, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got, series = map[string]float64{}, 0
		for _, f := range fams {
			for _, m := range f.GetMetric() {
				series++
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += "," + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return got["runtime_ingress_requests_total,,4xx"] == 5 && got["runtime_ingress_requests_total,shop,2xx"] == 5 && got["runtime_ingress_request_seconds,shop"] == 5
	})
	if series > 40 {
		t.Errorf("%d series", series)
	}
	wait.For(t, "the lines are written", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Count(lines.Bytes(), []byte("\n")) == 10
	})
	mu.Lock()
	defer mu.Unlock()
	if bytes.Contains(lines.Bytes(), []byte("hunter2")) {
		t.Errorf("a value of a query is logged:\n%s", &lines)
	}
	dec := json.NewDecoder(&lines)
	seen := map[string]int{}
	for dec.More() {
		var l struct {
			App, Method, Host, Path, Query string
			Version, Sandbox, Peer         string
			Time                           time.Time
			Status                         int
			Bytes                          int64
			Seconds                        float64
			FirstByte                      float64 `json:"first_byte_seconds"`
			RequestID                      string  `json:"request_id"`
		}
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if l.RequestID == "" || l.Method != "GET" || l.Time.IsZero() || l.Seconds <= 0 || l.FirstByte <= 0 || l.Bytes == 0 && l.App != "" {
			t.Errorf("%+v", l)
		}
		if l.App == "shop" && (l.Version != "v1" || l.Sandbox == "" || l.Peer != "192.0.2.7" || l.Query != "token=&…") {
			t.Errorf("%+v", l)
		}
		seen[fmt.Sprint(l.App, l.Status)]++
	}
	if seen["shop200"] != 5 || seen["404"] != 5 {
		t.Errorf("%v", seen)
	}
	in.install(&State{})
	if fams, _ := reg.Gather(); fams != nil {
		for _, f := range fams {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetValue() == "shop" {
						t.Errorf("%s of a deleted app is kept", f.GetName())
					}
				}
			}
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
