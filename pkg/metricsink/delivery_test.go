package metricsink

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricstore"
	"miren.dev/runtime/testsupport/wait"
)

// fixture is a history, and a delivery of it to a Prometheus.
type fixture struct {
	*testing.T
	store *metricstore.Store
	recv  *receiver
	file  string
	kind  string
	start time.Time
}

func newFixture(t *testing.T, kind string) *fixture {
	t.Helper()
	store, err := metricstore.Open(metricstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{T: t, store: store, recv: newReceiver(t), file: filepath.Join(t.TempDir(), "sink.json"), kind: kind, start: time.Now().Add(-10 * time.Minute).Truncate(time.Second)}
}

// round appends the samples of one time, n rounds after the first.
func (f *fixture) round(n int) {
	f.Helper()
	at := f.at(n)
	if err := f.store.Append(f.Context(), at, []metricstore.Sample{
		{Name: "sandbox_cpu_seconds_total", Labels: map[string]string{"app": "app-1", "sandbox": "sb-1"}, Value: float64(n)},
		{Name: "node_memory_bytes", Labels: map[string]string{"node": "node-1"}, Value: float64(100 * n)},
	}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) at(n int) time.Time { return f.start.Add(time.Duration(n) * 15 * time.Second) }

func (f *fixture) delivery() *Delivery {
	f.Helper()
	sink, err := New(f.kind + "+" + f.recv.URL)
	if err != nil {
		f.Fatal(err)
	}
	d, err := NewDelivery(Config{
		Name: "test", Sink: sink, Store: f.store, File: f.file, Installation: "inst", Logger: slog.New(slog.DiscardHandler),
		Poll: time.Millisecond, Retry: time.Millisecond,
		Owner: func(_ context.Context, app string) (string, string, error) {
			if app != "app-1" {
				return "", "", errs.New(errs.NotFound, "no app %s", app)
			}
			return "default", "shop", nil
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// drain sends what there is.
func (f *fixture) drain(d *Delivery) error {
	f.Helper()
	for range 1000 {
		if more, err := d.Round(f.Context()); err != nil || !more {
			return err
		}
	}
	f.Fatal("there is always more")
	return nil
}

// has checks that the receiver has the rounds from one to another, and no others.
func (f *fixture) has(from, to int) {
	f.Helper()
	for n := range 40 {
		cpu, memory := f.recv.query(f.T, `runtime_sandbox_cpu_seconds_total`, f.at(n)), f.recv.query(f.T, `runtime_node_memory_bytes`, f.at(n))
		want := 0
		if n >= from && n <= to {
			want = 1
		}
		if len(cpu) != want || len(memory) != want || want == 1 && (cpu[0].F != float64(n) || memory[0].F != float64(100*n)) {
			f.Fatalf("round %d: cpu %v, memory %v; want those of %d to %d", n, cpu, memory, from, to)
		}
	}
}

// TestDelivery: a new sink gets the samples from then on, once; one that fails gets them
// later; refused ones are counted and not sent again.
func TestDelivery(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, kind)
			f.round(0)
			d := f.delivery()
			for n := 1; n <= 20; n++ {
				f.round(n)
			}
			if err := f.drain(d); err != nil {
				t.Fatal(err)
			}
			f.has(1, 19) // the newest waits for the next
			if s := d.Stats(); s.Sent != 2*19 || s.Refused != 0 || s.Lost != 0 {
				t.Errorf("%+v", s)
			}
			if kind == "prometheus" {
				if got := f.recv.query(t, `runtime_sandbox_cpu_seconds_total`, f.at(5))[0].Metric.Map(); got["app"] != "shop" || got["project"] != "default" || got["sandbox"] != "sb-1" || got["installation"] != "inst" {
					t.Errorf("labels %v", got)
				}
			}
			f.recv.fails.Store(http.StatusServiceUnavailable)
			f.round(21)
			f.round(22)
			if err := f.drain(d); !errs.Is(err, errs.Unavailable) {
				t.Fatalf("%v", err)
			}
			f.recv.fails.Store(0)
			d = f.delivery() // the next process
			if err := f.drain(d); err != nil {
				t.Fatal(err)
			}
			f.has(1, 21)
			f.recv.fails.Store(http.StatusBadRequest)
			f.round(23)
			if err := f.drain(d); err != nil {
				t.Fatal(err)
			}
			f.recv.fails.Store(0)
			f.round(24)
			if err := f.drain(d); err != nil {
				t.Fatal(err)
			}
			if s := f.delivery().Stats(); s.Refused != 2 || s.Sent != 2*22 {
				t.Errorf("the record has %+v", s)
			}
		})
	}
}

// kept is a sink that keeps the samples.
type kept struct{ samples []Sample }

func (k *kept) Send(_ context.Context, samples []Sample) error {
	k.samples = append(k.samples, samples...)
	return nil
}

func (*kept) Close() {}

// TestStartsOfCounters: a counter has the time since which it counts, also after a restart of the server.
func TestStartsOfCounters(t *testing.T) {
	f := newFixture(t, "otlp")
	f.start = f.start.Add(-2 * time.Hour)
	type counters map[string]float64 // by sandbox
	type starts map[string]int       // the rounds
	process := func() (*Delivery, *kept) {
		k := &kept{}
		d := f.delivery()
		d.c.Sink = k
		return d, k
	}
	for _, tc := range []struct {
		round int
		have  counters
		want  starts
	}{
		{0, counters{"a": 10}, nil},            // before the sink
		{1, counters{"a": 12}, starts{"a": 1}}, // it is not known
		{2, counters{"a": 12}, starts{"a": 1}},
		{3, counters{"a": 3}, starts{"a": 2}},                 // it began again at 0
		{4, counters{"a": 5, "b": 1}, starts{"a": 2, "b": 3}}, // a new one began since the last time
		{5, counters{"b": 2}, starts{"b": 3}},
		{30, counters{"a": 6, "b": 4, "c": 9}, starts{"a": 2, "b": 3, "c": 30}}, // since when in the minutes without samples is not known
		{31, counters{"a": 7, "b": 4, "c": 9}, starts{"a": 2, "b": 3, "c": 30}},
		{300, counters{"a": 8}, starts{"a": 2}},
		{301, counters{"a": 8, "b": 6}, starts{"a": 2, "b": 300}}, // one that was away for an hour is a new one
	} {
		if tc.round == 1 {
			process() // its record
		}
		var list []metricstore.Sample
		for sb, v := range tc.have {
			list = append(list, metricstore.Sample{Name: "sandbox_cpu_seconds_total", Labels: map[string]string{"app": "app-1", "sandbox": sb}, Value: v},
				metricstore.Sample{Name: "sandbox_memory_bytes", Labels: map[string]string{"app": "app-1", "sandbox": sb}, Value: v})
		}
		if err := f.store.Append(t.Context(), f.at(tc.round), list); err != nil {
			t.Fatal(err)
		}
		if tc.want == nil {
			continue
		}
		d, _ := process() // that is killed before its record
		moments, err := f.store.Samples(t.Context(), f.at(tc.round-1), f.at(tc.round))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.send(t.Context(), moments[len(moments)-1], map[string][2]string{}); err != nil {
			t.Fatal(err)
		}
		d, k := process()
		did, err := d.send(t.Context(), moments[len(moments)-1], map[string][2]string{})
		if err == nil {
			_, err = d.send(t.Context(), moments[len(moments)-1], map[string][2]string{}) // a part was not answered
		}
		if err == nil {
			err = d.advance(f.at(tc.round), did)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range k.samples {
			want := time.Time{}
			if n, ok := tc.want[s.Labels["sandbox"]]; ok && s.counts() {
				want = f.at(n)
			}
			if !s.Start.Equal(want) {
				t.Errorf("round %d: %s of %s counts since %s, want %s", tc.round, s.Name, s.Labels["sandbox"], s.Start, want)
			}
		}
		if len(k.samples) != 4*len(tc.want) {
			t.Errorf("round %d: %d samples", tc.round, len(k.samples))
		}
	}
	d, _ := process()
	d.Do(func(st *state) {
		if len(st.Counters) != 2 {
			t.Errorf("the record has %d counters", len(st.Counters))
		}
	})
}

// TestKilledDelivery: a process that is killed after a request and before its record
// sends the samples of that time again, and the receiver has each once.
func TestKilledDelivery(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, kind)
			f.round(0)
			f.delivery() // its record
			for n := 1; n <= 10; n++ {
				f.round(n)
			}
			for range 30 {
				d := f.delivery()
				var from time.Time
				d.Do(func(st *state) { from = st.At })
				moments, err := f.store.Samples(t.Context(), from, f.at(9))
				if err != nil {
					t.Fatal(err)
				}
				if len(moments) == 0 {
					break
				}
				if _, err := d.send(t.Context(), moments[0], map[string][2]string{}); err != nil {
					t.Fatal(err) // and the process is gone
				}
				d = f.delivery()
				did, err := d.send(t.Context(), moments[0], map[string][2]string{})
				if err != nil || did.Refused != 0 {
					t.Fatalf("sent again: %+v %v", did, err)
				}
				if err := d.advance(moments[0].At, did); err != nil {
					t.Fatal(err)
				}
			}
			f.has(1, 9)
		})
	}
}

// TestRunTellsWhyItWaits: the state has the error while a sink fails, and no error after.
func TestRunTellsWhyItWaits(t *testing.T) {
	f := newFixture(t, "otlp")
	f.round(0)
	d := f.delivery()
	f.recv.fails.Store(http.StatusBadGateway)
	f.round(1)
	f.round(2)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	wait.NoError(t, "the state tells the error", func() error {
		if s := d.Stats(); !strings.Contains(s.Error, "502") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	f.recv.fails.Store(0)
	wait.NoError(t, "it works again", func() error {
		if s := d.Stats(); s.Error != "" || s.Sent != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLostSamples: the time that the retention deleted before it was sent is told.
func TestLostSamples(t *testing.T) {
	f := newFixture(t, "prometheus")
	f.round(0)
	d := f.delivery()
	f.round(1)
	f.round(2)
	if err := f.drain(d); err != nil {
		t.Fatal(err)
	}
	store, err := metricstore.Open(metricstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f.store = store // the samples until round 29 were deleted
	f.round(30)
	f.round(31)
	d = f.delivery()
	if err := f.drain(d); err != nil {
		t.Fatal(err)
	}
	if s := d.Stats(); s.Lost != f.at(30).Sub(f.at(1)) || s.Sent != 4 {
		t.Errorf("%+v", s)
	}
}
