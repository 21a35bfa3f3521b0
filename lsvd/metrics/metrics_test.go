package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
)

func TestHistogramQuantiles(t *testing.T) {
	var h Histogram
	for i := range 1000 {
		h.Observe(time.Duration(i+1) * 10 * time.Microsecond) // 10 µs to 10 ms
	}
	h.Observe(-1)
	h.Observe(time.Hour)
	c := h.Counts()
	if c.Count != 1002 || c.Max != time.Hour {
		t.Errorf("%d, longest %s", c.Count, c.Max)
	}
	for q, want := range map[float64]time.Duration{0.5: 5 * time.Millisecond, 0.99: 9900 * time.Microsecond, 1: time.Hour} {
		if got := c.Quantile(q); got < want || got > want*5/4+time.Microsecond {
			t.Errorf("quantile %v: %s, want %s", q, got, want)
		}
	}
	last := uint64(0)
	for i := 1; i < buckets-1; i++ {
		if upper(i) <= upper(i-1) || bucket(upper(i)-1) != i || bucket(upper(i)) != i+1 {
			t.Errorf("bucket %d ends at %d", i, upper(i))
		}
	}
	if n := len(c.cumulative()); n < 10 || n > 16 {
		t.Errorf("%d buckets for Prometheus", n)
	}
	for bound, n := range c.cumulative() {
		if bound > 1 && n != 1001 {
			t.Errorf("%d below %v s", n, bound)
		}
		last = max(last, n)
	}
	if last != 1001 {
		t.Errorf("%d in all bounded buckets", last)
	}
	var empty Counts
	if empty.Quantile(0.5) != 0 {
		t.Error("quantile of nothing")
	}
}

type backend struct{ err error }

func (backend) Size() int64                                                { return 1 << 20 }
func (b backend) ReadAt(context.Context, []byte, int64) error              { return b.err }
func (b backend) WriteAt(context.Context, []byte, int64, lsvd.Flags) error { return b.err }
func (b backend) Zero(context.Context, int64, int64, lsvd.Flags) error     { return b.err }
func (b backend) Trim(context.Context, int64, int64, lsvd.Flags) error     { return b.err }
func (b backend) Flush(context.Context) error                              { return b.err }
func (b backend) Status(int64, int64, func(int64, int64, bool) bool) error { return b.err }

func TestCollectorCountsEveryOperation(t *testing.T) {
	ctx := t.Context()
	good, bad := NewDisk(backend{}), NewDisk(backend{errors.New("broken")})
	p := make([]byte, 4096)
	for _, d := range []*Disk{good, bad} {
		_ = d.ReadAt(ctx, p, 0)
		_ = d.WriteAt(ctx, p, 0, 0)
		_ = d.Zero(ctx, 0, 8192, 0)
		_ = d.Trim(ctx, 0, 8192, 0)
		_ = d.Flush(ctx)
	}
	st, counts := WrapStore(&storesim.Mem{})
	if _, err := st.Create(ctx, "a", p); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Create(ctx, "a", p); err == nil {
		t.Fatal("created twice")
	}
	for range st.List(ctx, "") {
		break
	}
	stats := lsvd.Stats{UnsentBytes: 5, Lag: 3 * time.Second, Written: 100, Published: 100, Moved: 50, Stored: 120, StoredGC: 30, StoredMap: 10}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(func() []Sample {
		return []Sample{{Volume: "v", Stats: stats, Frontends: map[string]*Disk{"nbd": good, "block": bad}, Store: counts, Up: true}, {Volume: "w"}}
	}))
	want := `
# HELP lsvd_lag_seconds Age of the oldest acknowledged write that the store does not have yet.
# TYPE lsvd_lag_seconds gauge
lsvd_lag_seconds{volume="v"} 3
lsvd_lag_seconds{volume="w"} 0
# HELP lsvd_operation_errors_total Operations that failed.
# TYPE lsvd_operation_errors_total counter
lsvd_operation_errors_total{frontend="block",op="flush",volume="v"} 1
lsvd_operation_errors_total{frontend="block",op="read",volume="v"} 1
lsvd_operation_errors_total{frontend="block",op="trim",volume="v"} 1
lsvd_operation_errors_total{frontend="block",op="write",volume="v"} 1
lsvd_operation_errors_total{frontend="block",op="zero",volume="v"} 1
lsvd_operation_errors_total{frontend="nbd",op="flush",volume="v"} 0
lsvd_operation_errors_total{frontend="nbd",op="read",volume="v"} 0
lsvd_operation_errors_total{frontend="nbd",op="trim",volume="v"} 0
lsvd_operation_errors_total{frontend="nbd",op="write",volume="v"} 0
lsvd_operation_errors_total{frontend="nbd",op="zero",volume="v"} 0
# HELP lsvd_store_requests_total Requests to the store, by result.
# TYPE lsvd_store_requests_total counter
lsvd_store_requests_total{op="create",result="already_exists",volume="v"} 1
lsvd_store_requests_total{op="create",result="ok",volume="v"} 1
lsvd_store_requests_total{op="list",result="ok",volume="v"} 1
# HELP lsvd_stored_bytes_total Bytes created in the store since the disk was opened, by origin.
# TYPE lsvd_stored_bytes_total counter
lsvd_stored_bytes_total{origin="gc",volume="v"} 30
lsvd_stored_bytes_total{origin="map",volume="v"} 10
lsvd_stored_bytes_total{origin="writes",volume="v"} 80
lsvd_stored_bytes_total{origin="gc",volume="w"} 0
lsvd_stored_bytes_total{origin="map",volume="w"} 0
lsvd_stored_bytes_total{origin="writes",volume="w"} 0
# HELP lsvd_up 1 if the disk can be used, 0 if it is closed or has failed.
# TYPE lsvd_up gauge
lsvd_up{volume="v"} 1
lsvd_up{volume="w"} 0
# HELP lsvd_write_amplification Bytes brought to the store and moved there per byte written, before compression, since the disk was opened.
# TYPE lsvd_write_amplification gauge
lsvd_write_amplification{volume="v"} 1.5
lsvd_write_amplification{volume="w"} 0
`
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	have := map[string]bool{}
	for _, l := range strings.Split(rec.Body.String(), "\n") {
		have[l] = true
	}
	for _, l := range strings.Split(want, "\n") {
		if !have[l] {
			t.Errorf("%q is missing", l)
		}
	}
	if n := strings.Count(rec.Body.String(), "lsvd_operation_seconds_count{"); rec.Code != 200 || n != 10 {
		t.Errorf("status %d, %d histograms:\n%s", rec.Code, n, rec.Body)
	}
	if good.Busy() != 0 || bad.Busy() != 0 {
		t.Error("operations are in flight")
	}
}

// TestWrappedStoreStaysLocal keeps what a store can do besides.
func TestWrappedStoreStaysLocal(t *testing.T) {
	dir, err := dirstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	st, _ := WrapStore(dir)
	if _, ok := st.(store.Local); !ok {
		t.Error("a directory is no longer local")
	}
	st, _ = WrapStore(&storesim.Mem{})
	if _, ok := st.(store.Local); ok {
		t.Error("memory is local")
	}
}
