package disks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api/disk"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/errs"
)

// gate is the way of one node to a store. It takes so many more objects; then the
// node cannot write any more, as if it were dead.
type gate struct {
	store.Store
	left atomic.Int64
}

func (g *gate) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if g.left.Add(-1) < 0 {
		return "", errs.New(errs.Unavailable, "the store is not reached")
	}
	return g.Store.Create(ctx, key, data)
}

func (g *gate) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	if g.left.Load() <= 0 {
		return "", errs.New(errs.Unavailable, "the store is not reached")
	}
	return g.Store.Replace(ctx, key, data, old)
}

// write is one acknowledged change: its sequence number and the bytes of its data.
type write struct {
	seq   uint64
	bytes int64
}

// TestBoundsOfALoss has one node write, report now and then, restart, lose its store and
// die, each at a random point, and another one take the volume over. The bounds that
// it states have the true loss between them, and the lower one is not always 0.
func TestBoundsOfALoss(t *testing.T) {
	const size, rounds = 8 << 20, 30
	known, lost := 0, 0
	for seed := range uint64(rounds) {
		least, truth := takeOver(t, size, seed)
		if truth > 0 {
			lost++
		}
		if least > 0 {
			known++
		}
	}
	t.Logf("of %d takeovers %d lost writes, of which a report had some in %d", rounds, lost, known)
	if lost < rounds/4 || known < lost/4 {
		t.Errorf("of %d takeovers %d lost writes, of which a report had some in %d", rounds, lost, known)
	}
}

func takeOver(t *testing.T, size int64, seed uint64) (least, truth int64) {
	t.Helper()
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 16))
	st := &storesim.Mem{}
	id, err := catalog.Create(ctx, st, "data", size, nil)
	if err != nil {
		t.Fatal(err)
	}
	const url = "/shared"
	home, other := state(t), state(t)
	way := &gate{Store: st}
	way.left.Store(1 << 30)
	open := func(s *host.State, st store.Store, over bool) *host.Disk {
		t.Helper()
		d, err := s.Open(ctx, st, host.Spec{Store: url, Volume: id.String(), TakeOver: over, Options: lsvd.Options{
			LogFile: 256 << 10, CutBytes: 16<<10 + rng.Int64N(128<<10), CutAge: time.Hour, MaxUnsent: size}})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		return d
	}
	figuresOf := func(d *host.Disk) *ctldisk.Volume {
		info := asDisk(daemon.Info{Spec: daemon.Spec{ID: id.String()}, Size: d.Size(), Recovery: d.Recovery, Stats: d.Stats()})
		return &ctldisk.Volume{Unsent: unsentOf(info.Figures), Opened: openedOf(&info)}
	}
	ended, end := context.WithCancel(ctx)
	end()
	d := open(home, way, false)
	var writes []write
	var status disk.DiskStatus
	report := func() { figuresOf(d).Unsent.Report(&status, time.Now()) }
	if rng.IntN(8) > 0 {
		report()
	}
	steps := 40 + rng.IntN(200)
	for range steps {
		switch rng.IntN(20) {
		case 0, 1, 2:
			report()
		case 3:
			way.left.Store(rng.Int64N(6)) // the store begins to fail
		case 4:
			way.left.Store(1 << 30)
			if err := d.Drain(ctx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		case 5:
			if rng.IntN(4) > 0 {
				break
			}
			_ = d.Device.Close(ended) // unsent changes stay in the log
			way.left.Store(1 << 30)
			d = open(home, way, false)
			way.left.Store(rng.Int64N(6))
		default:
			n := (1 + rng.Int64N(8)) * lsvd.BlockSize
			at := rng.Int64N((size-n)/lsvd.BlockSize) * lsvd.BlockSize
			w := write{bytes: n}
			if rng.IntN(10) == 0 {
				err, w.bytes = d.Zero(ctx, at, n, 0), 0
			} else {
				p := make([]byte, n)
				for i := range p {
					p[i] = byte(rng.Uint32())
				}
				err = d.WriteAt(ctx, p, at, 0)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			w.seq = d.Last()
			writes = append(writes, w)
		}
		if f := figuresOf(d).Unsent; f.Bytes > size+8*lsvd.BlockSize {
			t.Fatalf("seed %d: %d bytes are unsent", seed, f.Bytes)
		}
	}
	way.left.Store(-1 << 30) // it dies
	o := open(other, st, true)
	_ = d.Device.Close(ended)
	defer func() {
		if err := o.Close(ctx); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}()
	for _, w := range writes {
		if w.seq > o.Recovery.Last {
			truth += w.bytes
		}
	}
	least, most := ctldisk.Loss(&status, figuresOf(o).Opened)
	if least > truth || most != nil && *most < truth {
		t.Errorf("seed %d: at least %d and at most %s bytes, in truth %d; reported %+v, opened after %d", seed, least, text(most), truth, status.UnsentCuts, o.Recovery.Last)
	}
	if status.ReportedAt != nil && most == nil {
		t.Errorf("seed %d: the most is not known in spite of a report", seed)
	}
	return least, truth
}

func text(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

func state(t *testing.T) *host.State {
	t.Helper()
	s, err := host.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNothingIsLost: a volume that was closed clean loses nothing, whatever its node
// reported before.
func TestNothingIsLost(t *testing.T) {
	sent, most, now := int64(3), int64(1<<30), time.Now()
	s := &disk.DiskStatus{SentWrite: &sent, UnsentMostBytes: &most, ReportedAt: &now, UnsentCuts: []disk.UnsentCut{{Last: 9, Bytes: 4096}}}
	for _, tc := range []struct {
		name  string
		o     ctldisk.Opened
		least int64
		most  string
	}{
		{"closed clean", ctldisk.Opened{}, 0, "0"},
		{"as reported", ctldisk.Opened{Lost: true, After: 3}, 4096, "1073741824"},
		{"sent since", ctldisk.Opened{Lost: true, After: 9}, 0, "1073741824"},
		{"cut otherwise", ctldisk.Opened{Lost: true, After: 5}, 0, "1073741824"},
		{"the store has less than before", ctldisk.Opened{Lost: true, After: 2}, 4096, "unknown"},
		{"damaged", ctldisk.Opened{Lost: true, Damaged: true, After: 3}, 4096, "unknown"},
	} {
		if least, most := ctldisk.Loss(s, tc.o); least != tc.least || text(most) != tc.most {
			t.Errorf("%s: at least %d, at most %s", tc.name, least, text(most))
		}
	}
	if least, most := ctldisk.Loss(&disk.DiskStatus{}, ctldisk.Opened{Lost: true}); least != 0 || most != nil {
		t.Errorf("without a report: at least %d, at most %s", least, text(most))
	}
}
