package lsvd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
)

// bigVolume puts a volume of 100 GiB, all of it written, into dir: a manifest,
// a map whose leaves have so many runs each, and its segments as empty files.
func bigVolume(b testing.TB, dir string, id ID, runs int) *dirstore.Store {
	const size, segBlocks = 100 << 30, 4096
	st, err := dirstore.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	m := &manifest.Manifest{Volume: id, Epoch: 1, ChainEpoch: 1, Durable: 1 << 30, Size: size, NextSegment: 1, Clean: true, Created: 1}
	data := filepath.Join(dir, filepath.Dir(name.Ref{Volume: id, Kind: name.Data}.Key()))
	if err := os.MkdirAll(data, 0o700); err != nil {
		b.Fatal(err)
	}
	for i := range uint64(size / BlockSize / segBlocks * 14 / 10) {
		s := manifest.Segment{Num: i + 1, Ref: name.Ref{Volume: id, Kind: name.Data, Epoch: 1, Num: i}, Size: segBlocks*BlockSize/2 + 6000, Blocks: segBlocks,
			First: i*segBlocks + 1, Last: (i + 1) * segBlocks}
		m.Segments = append(m.Segments, s)
		f, err := os.Create(filepath.Join(dir, s.Ref.Key()))
		if err == nil {
			err = f.Truncate(s.Size)
		}
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	m.NextSegment, m.ChainNext = uint64(len(m.Segments)+1), uint64(len(m.Segments))
	rng := rand.New(rand.NewPCG(1, 1))
	cp := &manifest.Checkpoint{Ref: name.Ref{Volume: id, Kind: name.Map, Epoch: 1}}
	n := uint16(extent.LeafBlocks / runs)
	for leaf := range uint64(size / BlockSize / extent.LeafBlocks) {
		content := make([]extent.Run, runs)
		for i := range content {
			s := rng.IntN(len(m.Segments))
			m.Segments[s].Live = min(m.Segments[s].Live+uint64(n), segBlocks)
			content[i] = extent.Run{Start: uint16(i) * n, N: n, Src: uint64(s + 1), Off: uint32(rng.IntN(segBlocks - int(n)))}
		}
		cp.Leaf(leaf, content)
	}
	object := cp.Encode()
	m.Root = &manifest.Root{Ref: cp.Ref, Size: int64(len(object)), Seq: m.Durable}
	m.Maps = cp.Objects()
	for k, v := range map[string][]byte{cp.Ref.Key(): object, name.Manifest(id): m.Encode(name.Manifest(id))} {
		if _, err := st.Create(b.Context(), k, v); err != nil {
			b.Fatal(err)
		}
	}
	return st
}

// BenchmarkRecovery opens a volume of 100 GiB whose log has LSVD_BENCH_GIB
// (4) of unsent data, half of it written in blocks of 4 KiB, half in 1 MiB;
// with the log in the page cache, as after a crash of the process, and
// without, as after one of the machine.
func BenchmarkRecovery(b *testing.B) {
	gib := 4.0
	if v, err := strconv.ParseFloat(os.Getenv("LSVD_BENCH_GIB"), 64); err == nil {
		gib = v
	}
	dir, id := b.TempDir(), NewID()
	inner := bigVolume(b, filepath.Join(dir, "store"), id, 64)
	var down atomic.Bool
	st := &storesim.Fault{Store: inner, Hook: func(op storesim.Op, key string) storesim.Action {
		if down.Load() && op == storesim.OpCreate {
			return storesim.Action{Before: storesim.Unreachable()}
		}
		return storesim.Action{}
	}}
	log := filepath.Join(dir, "log")
	open := func() (*Device, Recovery) {
		down.Store(false) // for the fence
		fs, err := vfs.OpenDir(log)
		if err != nil {
			b.Fatal(err)
		}
		// One cut goes to the store at most before it is down.
		d, rec, err := Open(b.Context(), st, fs, id, Options{MaxUnsent: 1 << 40})
		down.Store(true)
		if err != nil {
			b.Fatal(err)
		}
		return d, rec
	}
	leave := func(d *Device) {
		gone, cancel := context.WithCancel(b.Context())
		cancel()
		d.Close(gone)
	}
	d, _ := open()
	data := make([]byte, 2<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	var wg sync.WaitGroup
	total := int64(gib * (1 << 30))
	for w := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			for done := int64(0); done < total/16; {
				n := int64(1 << 20)
				if done < total/32 {
					n = 4 << 10
				}
				if err := d.WriteAt(context.Background(), data[w*4096:][:n], rng.Int64N(d.Size()/n)*n, 0); err != nil {
					b.Error(err)
					return
				}
				done += n
			}
		})
	}
	wg.Wait()
	if err := d.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	leave(d)
	for _, cold := range []bool{false, true} {
		b.Run(map[bool]string{false: "warm", true: "cold"}[cold], func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if cold {
					files, _ := filepath.Glob(filepath.Join(log, "log-*"))
					for _, n := range files {
						f, err := os.Open(n)
						if err != nil {
							b.Fatal(err)
						}
						unix.Fdatasync(int(f.Fd()))
						unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
						f.Close()
					}
				}
				runtime.GC()
				heap, rss, cpu := memory()
				b.StartTimer()
				d, rec := open()
				b.StopTimer()
				used := processorTime() - cpu
				runtime.GC()
				heap2, rss2, _ := memory()
				b.ReportMetric(float64(heap2-heap)/1e6, "heap-MB")
				b.ReportMetric(float64(rss2-rss)/1e6, "rss-MB")
				b.ReportMetric(used.Seconds(), "cpu-s")
				b.ReportMetric(float64(rec.Last-rec.Durable), "writes")
				leave(d)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkIdle opens 50 volumes of 100 GiB, reads and writes a little in
// each, and measures what each takes once it is idle.
func BenchmarkIdle(b *testing.B) {
	const disks = 50
	dir, id := b.TempDir(), NewID()
	st := bigVolume(b, dir, id, 64)
	m, _, err := manifest.Load(b.Context(), st, name.Manifest(id))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		debug.FreeOSMemory()
		heap, rss, _ := memory()
		var all []*Device
		for range disks {
			c := m.Clone()
			c.Volume = NewID()
			if _, err := st.Create(b.Context(), name.Manifest(c.Volume), c.Encode(name.Manifest(c.Volume))); err != nil {
				b.Fatal(err)
			}
			fs, err := vfs.OpenDir(filepath.Join(dir, "logs", c.Volume.String()))
			if err != nil {
				b.Fatal(err)
			}
			d, _, err := Open(b.Context(), st, fs, c.Volume, Options{LogFile: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			for range 200 {
				off := rng.Int64N(d.Size()/BlockSize) * BlockSize
				d.Status(off, BlockSize, func(_, _ int64, _ bool) bool { return true }) // the segments are empty files
				if err := d.WriteAt(b.Context(), make([]byte, BlockSize), off, 0); err != nil {
					b.Fatal(err)
				}
			}
			all = append(all, d)
		}
		for _, d := range all {
			if err := d.Drain(b.Context()); err != nil {
				b.Fatal(err)
			}
			d.evict(true)
			d.evict(true)
		}
		debug.FreeOSMemory()
		heap2, rss2, _ := memory()
		b.ReportMetric(float64(heap2-heap)/1e6/disks, "heap-MB/disk")
		b.ReportMetric(float64(rss2-rss)/1e6/disks, "rss-MB/disk")
		if f := os.Getenv("LSVD_HEAP"); f != "" {
			w, _ := os.Create(f)
			pprof.WriteHeapProfile(w)
			w.Close()
		}
		for _, d := range all {
			gone, cancel := context.WithCancel(b.Context())
			cancel()
			d.Close(gone)
		}
	}
}

func memory() (heap, rss int64, cpu time.Duration) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, _ := os.ReadFile("/proc/self/statm")
	var size, resident int64
	fmt.Sscan(strings.TrimSpace(string(status)), &size, &resident)
	return int64(m.HeapInuse), resident * int64(os.Getpagesize()), processorTime()
}

func processorTime() time.Duration {
	var r unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
