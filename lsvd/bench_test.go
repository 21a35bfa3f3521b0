package lsvd_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
)

// benchWriteDisk opens a disk of 1 GiB on the file system of TMPDIR.
func benchWriteDisk(b *testing.B, opts lsvd.Options, down *atomic.Bool) *lsvd.Device {
	dir := b.TempDir()
	st, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(b.Context(), st, id, benchSize, nil); err != nil {
		b.Fatal(err)
	}
	d, _, err := lsvd.Open(b.Context(), &storesim.Fault{Store: st, Hook: func(storesim.Op, string) storesim.Action {
		if down.Load() {
			return storesim.Action{Before: storesim.Unreachable()}
		}
		return storesim.Action{}
	}}, fs, id, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		d.Close(gone)
	})
	return d
}

const benchSize = 1 << 30

// BenchmarkWrite writes at random addresses, with so many writers and so many
// bytes; flush makes each a write and a flush. It reports the 99th percentile,
// the ratio of CPU time to time, and allocations. Idle does not upload.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name    string
		size    int
		writers int
		flush   bool
		upload  bool
	}{
		{"4K-QD1", 4 << 10, 1, false, false},
		{"4K-QD32", 4 << 10, 32, false, false},
		{"1M-QD8", 1 << 20, 8, false, false},
		{"4K-flush", 4 << 10, 1, true, false},
		{"4K-flush-QD8", 4 << 10, 8, true, false},
		{"4K-QD32-upload", 4 << 10, 32, false, true},
		{"1M-QD8-upload", 1 << 20, 8, false, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			var down atomic.Bool
			opts := lsvd.Options{MaxUnsent: 1 << 40}
			if c.upload {
				opts = lsvd.Options{}
			}
			d := benchWriteDisk(b, opts, &down)
			data := make([]byte, 4<<20)
			rand.NewChaCha8([32]byte{1}).Read(data)
			// The log has its files, as after some time of use.
			down.Store(true)
			warm := int64(b.N)*int64(c.size+c.size/8) + 128<<20
			if c.upload {
				warm = 512 << 20
			}
			for off := int64(0); off < warm; off += 4 << 20 {
				if err := d.WriteAt(b.Context(), data, off%(16<<20), 0); err != nil {
					b.Fatal(err)
				}
			}
			down.Store(false)
			if err := d.Drain(b.Context()); err != nil {
				b.Fatal(err)
			}
			down.Store(!c.upload)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			var mu sync.Mutex
			var all []time.Duration
			var wg sync.WaitGroup
			cpu := cpuTime()
			b.ResetTimer()
			start := time.Now()
			for w := range c.writers {
				n := b.N / c.writers
				if w < b.N%c.writers {
					n++
				}
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 1))
					took := make([]time.Duration, n)
					p := data[w*4096%(1<<20):][:c.size]
					for i := range took {
						begin := time.Now()
						off := rng.Int64N(benchSize/int64(c.size)) * int64(c.size)
						err := d.WriteAt(context.Background(), p, off, 0)
						if err == nil && c.flush {
							err = d.Flush(context.Background())
						}
						if err != nil {
							b.Error(err)
							return
						}
						took[i] = time.Since(begin)
					}
					mu.Lock()
					all = append(all, took...)
					mu.Unlock()
				})
			}
			wg.Wait()
			b.StopTimer()
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(float64(all[len(all)-1].Microseconds()), "max-us")
			b.ReportMetric(float64(cpuTime()-cpu)/float64(time.Since(start)), "cpus")
		})
	}
}

func cpuTime() time.Duration {
	var r unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
