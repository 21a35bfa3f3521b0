package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/loop"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/lsvd/workload"
)

const (
	bigSize   = 100 << 30
	bigLog    = 4 << 30
	idleDisks = 50
)

// benchRecovery and benchDiskState measure values without a peer.
func benchRecovery(ctx context.Context, b *bench) error {
	d, err := newDisks(b, "recovery")
	if err != nil {
		return err
	}
	return d.recovery(ctx)
}

func benchDiskState(ctx context.Context, b *bench) error {
	d, err := newDisks(b, "diskstate")
	if err != nil {
		return err
	}
	var all []error
	for _, f := range []func(context.Context) error{d.idle, d.amplification} {
		if err := ctx.Err(); err != nil {
			return err
		}
		all = append(all, f(ctx))
	}
	return errors.Join(all...)
}

// recovery kills a process whose disk has a long log, and opens the disk;
// then it makes snapshots and clones of it and reads from them.
func (d *disks) recovery(ctx context.Context) (err error) {
	log := int64(bigLog)
	if d.b.opt.quick {
		log /= 8
	}
	group, err := d.b.scratch.memGroup("big", diskMemory)
	if err != nil {
		return err
	}
	progress("  writing %d MiB of log", log>>20)
	x, err := d.serve(ctx, "big", "--size", strconv.FormatInt(bigSize, 10), "--group", group)
	if err != nil {
		return err
	}
	for _, c := range []string{"touch 2097152", "settle", "hold", fmt.Sprintf("fill %d 65536", log)} {
		if _, err := x.tell(ctx, c); err != nil {
			return errors.Join(err, x.stop())
		}
	}
	var opened []float64
	for range 3 {
		x.kill()
		if err := dropCache(filepath.Join(d.dir, "big")); err != nil {
			return err
		}
		if x, err = d.serve(ctx, "big", "--group", group, "--held"); err != nil {
			return err
		}
		opened = append(opened, x.info.OpenMS/1000)
	}
	what := fmt.Sprintf("recovery, %.1f GiB of log, 100 GiB volume", float64(log)/(1<<30))
	d.b.report.figure(what, "s", median(opened), 2)
	d.b.report.figure(what+", never flushed", "s", opened[0], 2) // opening it makes the log durable
	progress("  opened in %.3f s", opened)
	defer func() { err = errors.Join(err, x.stop()) }()
	progress("  sending it")
	for _, c := range []string{"go", "settle"} {
		if _, err := x.tell(ctx, c); err != nil {
			return err
		}
	}
	var snapshot, clone, first, open []float64
	for i := range 3 {
		id := lsvd.ID{2, byte(i)}.String()
		s, err := x.took(ctx, fmt.Sprintf("snapshot s%d", i))
		if err != nil {
			return err
		}
		c, err := x.took(ctx, fmt.Sprintf("clone s%d %s", i, id))
		if err != nil {
			return err
		}
		y, err := d.serve(ctx, "big", "--volume", id, "--log", "log-"+id, "--delay", "20ms")
		if err != nil {
			return err
		}
		r, err := y.took(ctx, fmt.Sprintf("read %d", 50<<30))
		if err = errors.Join(err, y.stop()); err != nil {
			return err
		}
		snapshot, clone, first, open = append(snapshot, s), append(clone, c), append(first, r), append(open, y.info.OpenMS)
	}
	d.b.report.figure("snapshot", "ms", median(snapshot), 200)
	d.b.report.figure("clone", "ms", median(clone), 100)
	d.b.report.figure("first read of a clone, store of 20 ms", "ms", median(first), 60)
	d.b.report.figure("opening the clone before, store of 20 ms", "ms", median(open), 0)
	return nil
}

// dropCache drops the files below dir from the page cache, except dirty pages.
func dropCache(dir string) error {
	return filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// idle measures the memory that an attached disk adds to a process.
func (d *disks) idle(ctx context.Context) error {
	dir := filepath.Join(d.dir, "idle")
	p, err := d.b.start(ctx, "idledisks", dir, d.b.scratch.owner())
	if err != nil {
		return err
	}
	v, err := strconv.ParseFloat(p.address, 64)
	if err = errors.Join(err, p.stop()); err != nil {
		return err
	}
	d.b.report.figure(fmt.Sprintf("memory per idle attached disk, %d in one process", idleDisks), "MiB", v, 8)
	return nil
}

// idleDisksChild attaches disks and prints how many MiB each added.
func idleDisksChild(ctx context.Context, args []string, ready func(string)) (err error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := loop.Prepare(logger); err != nil {
		return err
	}
	st, err := dirstore.Open(filepath.Join(args[0], "store"))
	if err != nil {
		return err
	}
	own := func() float64 {
		debug.FreeOSMemory() // otherwise the result would be chance
		return float64(pss("/proc/self")) / (1 << 20)
	}
	before := own()
	for i := range idleDisks {
		fs, err := vfs.OpenDir(filepath.Join(args[0], fmt.Sprintf("log%d", i)))
		if err != nil {
			return err
		}
		id := lsvd.ID{3, byte(i)}
		if err := lsvd.Create(ctx, st, id, 10<<30, nil); err != nil {
			return err
		}
		dev, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{Logger: logger})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dev.Close(context.Background())) }()
		a, err := loop.Attach(ctx, dev, loop.Options{Owner: args[1], Volume: fmt.Sprintf("idle%d", i), Dir: filepath.Join(args[0], "mnt"), Logger: logger})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Detach(context.Background())) }()
		if err := useBriefly(ctx, dev, a.Path()); err != nil {
			return err
		}
	}
	select { // memory of their use is freed after some seconds
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
	}
	ready(fmt.Sprintf("%f", (own()-before)/idleDisks))
	<-ctx.Done()
	return nil
}

// useBriefly writes and reads 1 MiB, scattered, through the block device.
func useBriefly(ctx context.Context, dev *lsvd.Device, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	for i := range int64(16) {
		fillRandom(b, uint64(i))
		if _, err := f.WriteAt(b, i<<29); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := dev.Drain(ctx); err != nil {
		return err
	}
	for i := range int64(16) {
		if err := dev.ReadAt(ctx, b, i<<29); err != nil {
			return err
		}
	}
	return nil
}

// amplification writes blocks in several orders to a disk whose store is
// memory, and counts the bytes that GC adds while it holds the space at 1.43.
// It calls GC every 64th of the disk, since the writer waits for nothing else.
func (d *disks) amplification(ctx context.Context) error {
	blocks, times := 32<<10, 4
	if d.b.opt.quick {
		blocks, times = 12<<10, 4
	}
	rng := rand.New(rand.NewPCG(5, 6))
	ring := blocks / 16
	for _, x := range []struct {
		name string
		goal float64
		next workload.Next
	}{
		{"uniform", 2.0, workload.Uniform(rng, blocks)},
		{"80/20", 1.9, workload.Hot(rng, blocks)},
		{"zipf 1.1", 1.7, workload.Zipf(rng, 1.1, blocks)},
		{"uniform and 30% to a journal", 0, workload.Journal(rng, 0.3, ring, workload.Uniform(rng, blocks-ring))},
	} {
		v, space, err := amplify(ctx, blocks, times, x.next)
		if err != nil {
			return err
		}
		d.b.report.figure("write amplification, "+x.name, "×", v, x.goal)
		d.b.report.figure("stored per live block, "+x.name, "×", space, 0)
	}
	return nil
}

func amplify(ctx context.Context, blocks, times int, next workload.Next) (written, space float64, err error) {
	st, id := &storesim.Mem{}, lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, int64(blocks)*lsvd.BlockSize, nil); err != nil {
		return 0, 0, err
	}
	dev, _, err := lsvd.Open(ctx, st, vfssim.New(), id, lsvd.Options{CutBytes: 1 << 20, MaxUnsent: 4 << 20, LogFile: 4 << 20, Compression: lsvd.CompressNone})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, dev.Close(context.Background())) }()
	block := make([]byte, lsvd.BlockSize)
	fillRandom(block, 1)
	count := 0
	write := func(lba int) error {
		if count++; count%(blocks/64) == 0 {
			if err := dev.Drain(ctx); err != nil {
				return err
			}
			if _, err := dev.GC(ctx, 1.43); err != nil {
				return err
			}
		}
		return dev.WriteAt(ctx, block, int64(lba)*lsvd.BlockSize, 0)
	}
	for lba := range blocks { // full before it counts
		if err := write(lba); err != nil {
			return 0, 0, err
		}
	}
	for range blocks {
		if err := write(next()); err != nil {
			return 0, 0, err
		}
	}
	if err := dev.Drain(ctx); err != nil {
		return 0, 0, err
	}
	from := dev.Stats()
	for range times * blocks {
		if err := write(next()); err != nil {
			return 0, 0, err
		}
	}
	if err := dev.Drain(ctx); err != nil {
		return 0, 0, err
	}
	to := dev.Stats()
	return 1 + float64(to.StoredGC-from.StoredGC)/float64(to.Written-from.Written), float64(to.StoredBlocks) / float64(to.LiveBlocks), nil
}
