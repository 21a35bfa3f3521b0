package lsvd

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

type benchOptions struct {
	base
	diskFlags
	size      string
	time      time.Duration
	depth     int
	tests     []string
	overwrite bool
}

// benchmark is one workload.
type benchmark struct {
	name   string
	what   string
	bytes  int64
	depth  int // 0: the flag's value
	write  bool
	flush  bool
	random bool
}

// The order matters: the first fills the disk.
var benchmarks = []benchmark{
	{name: "seqwrite", what: "write 1 MiB sequentially", bytes: 1 << 20, depth: 8, write: true},
	{name: "randwrite", what: "write 4 KiB at random offsets", bytes: 4 << 10, write: true, random: true},
	{name: "randwrite1", what: "write 4 KiB at random offsets", bytes: 4 << 10, depth: 1, write: true, random: true},
	{name: "writeflush", what: "write 4 KiB and flush, one at a time", bytes: 4 << 10, depth: 1, write: true, flush: true, random: true},
	{name: "randread", what: "read 4 KiB at random offsets", bytes: 4 << 10, random: true},
	{name: "randread1", what: "read 4 KiB at random offsets", bytes: 4 << 10, depth: 1, random: true},
	{name: "seqread", what: "read 1 MiB sequentially", bytes: 1 << 20, depth: 8},
}

func benchNames() []string {
	var out []string
	for _, b := range benchmarks {
		out = append(out, b.name)
	}
	return out
}

func newBench(e *command.Env) *cobra.Command {
	o := &benchOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "bench [VOLUME]",
		Short:   "Measure a disk on this machine with this store",
		Example: "  r lsvd bench\n  r lsvd bench --store s3://bucket/test --time 10s --tests randwrite,randread",
		Long: `Measures a disk without a frontend: a scratch volume that it deletes afterwards, or VOLUME. It only reads VOLUME, unless
--overwrite permits it to overwrite the data. Each test runs for --time.`,
		Args:              command.Args(0, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	o.addTuning(cmd)
	cmd.Flags().StringVarP(&o.size, "size", "s", "256M", "size of the scratch volume")
	cmd.Flags().DurationVar(&o.time, "time", 3*time.Second, "how long each test runs")
	cmd.Flags().IntVar(&o.depth, "depth", 32, "concurrent operations of tests without a depth of their own")
	cmd.Flags().StringSliceVar(&o.tests, "tests", nil, "only these tests, of: "+strings.Join(benchNames(), ", "))
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", false, "overwrite the data of VOLUME")
	return cmd
}

// measured is the result of one benchmark.
type measured struct {
	Test    string  `json:"test"`
	Depth   int     `json:"depth"`
	Bytes   int64   `json:"block_bytes"`
	Ops     uint64  `json:"operations"`
	Seconds float64 `json:"seconds"`
	IOPS    float64 `json:"iops"`
	MiBs    float64 `json:"mib_per_second"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	Max     float64 `json:"max_us"`
}

func (o *benchOptions) run(ctx context.Context, args []string) (err error) {
	var todo []benchmark
	for _, n := range o.tests {
		if !slices.Contains(benchNames(), n) {
			return exit.Usagef("there is no test %q; the tests are: %s", n, strings.Join(benchNames(), ", "))
		}
	}
	for _, b := range benchmarks {
		if b.depth == 0 {
			b.depth = o.depth
		}
		wanted := len(o.tests) == 0 || slices.Contains(o.tests, b.name)
		if len(args) > 0 && b.write && !o.overwrite {
			if wanted && len(o.tests) > 0 {
				return errs.New(errs.FailedPrecondition, "test %s would overwrite the data of %s", b.name, args[0]).WithHint("run without a volume, on a scratch one, or give --overwrite")
			}
			continue
		}
		if wanted {
			todo = append(todo, b)
		}
	}
	if o.depth < 1 || o.depth > 1024 || o.time <= 0 {
		return exit.Usagef("--depth must be from 1 to 1024, --time above 0")
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), procs))
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	var d *host.Disk
	if len(args) > 0 {
		name, _, err := volumeArg(args[0], false)
		if err != nil {
			return err
		}
		if d, err = o.openDisk(ctx, name, &o.diskFlags, nil); err != nil {
			return err
		}
		defer o.closeDisk(ctx, d, &err)
	} else {
		var remove func() error
		if d, remove, err = o.scratch(ctx, st, url); err != nil {
			return err
		}
		defer func() {
			if rerr := remove(); err == nil {
				err = rerr
			}
		}()
	}
	if d.Size() < 1<<20 {
		return errs.New(errs.FailedPrecondition, "the volume is smaller than 1 MiB")
	}
	return o.measure(ctx, d, todo)
}

func (o *benchOptions) measure(ctx context.Context, d *host.Disk, todo []benchmark) error {
	var rows [][]string
	results := []measured{}
	for _, b := range todo {
		o.Notef("%s: %s, %d concurrent\n", b.name, b.what, b.depth)
		m, err := o.one(ctx, d, b)
		if err != nil {
			return err
		}
		results = append(results, m)
		us := func(v float64) string { return latency(time.Duration(v * float64(time.Microsecond))) }
		rows = append(rows, []string{m.Test, strconv.Itoa(m.Depth), bytesCell(m.Bytes), strconv.FormatFloat(m.IOPS, 'f', 0, 64), strconv.FormatFloat(m.MiBs, 'f', 0, 64), us(m.P50), us(m.P99), us(m.Max)})
	}
	s := d.Stats()
	if o.JSON {
		return o.PrintJSON(map[string]any{"tests": results, "written_bytes": s.Written, "stored_bytes": s.Stored, "write_amplification": metrics.Amplification(s)})
	}
	o.Table([]string{"TEST", "DEPTH", "BLOCK", "IOPS", "MIB/S", "P50", "P99", "LONGEST"}, rows)
	return nil
}

// scratch makes a volume without a name, and a function that removes it.
func (o *benchOptions) scratch(ctx context.Context, st store.Store, url string) (*host.Disk, func() error, error) {
	size, err := sizeArg(o.size)
	if err != nil {
		return nil, nil, err
	}
	state, err := o.state()
	if err != nil {
		return nil, nil, err
	}
	id := lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, size, nil); err != nil {
		return nil, nil, err
	}
	d, err := state.Open(ctx, st, host.Spec{Store: url, Volume: id.String(), Options: o.options(nil)})
	if err != nil {
		return nil, nil, errors.Join(err, discard(ctx, st, state, id))
	}
	return d, func() error {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = d.Close(now) // the volume is deleted: no data needs to be sent
		return discard(ctx, st, state, id)
	}, nil
}

// one runs one benchmark.
func (o *benchOptions) one(ctx context.Context, d *host.Disk, b benchmark) (measured, error) {
	if !b.write {
		if err := d.Drain(ctx); err != nil { // reads of segments are measured too
			return measured{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	blocks := d.Size() / b.bytes
	var h metrics.Histogram
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, b.depth)
	began := time.Now()
	end := began.Add(o.time)
	for i := range b.depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			p := make([]byte, b.bytes)
			fill(p, rng)
			for first := true; (first || time.Now().Before(end)) && ctx.Err() == nil; first = false {
				at := next.Add(1) - 1
				if b.random {
					at = rng.Int64N(blocks)
				}
				off := at % blocks * b.bytes
				t := time.Now()
				var err error
				switch {
				case !b.write:
					err = d.ReadAt(ctx, p, off)
				default:
					err = d.WriteAt(ctx, p, off, 0)
				}
				if err == nil && b.flush {
					err = d.Flush(ctx)
				}
				if err != nil {
					failed <- err
					cancel()
					return
				}
				h.Observe(time.Since(t))
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	select {
	case err := <-failed:
		return measured{}, errs.Wrap(err, "test %s", b.name)
	default:
	}
	if err := ctx.Err(); err != nil {
		return measured{}, err
	}
	c := h.Counts()
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return measured{Test: b.name, Depth: b.depth, Bytes: b.bytes, Ops: c.Count, Seconds: took, IOPS: float64(c.Count) / took,
		MiBs: float64(c.Count) * float64(b.bytes) / took / (1 << 20), P50: us(c.Quantile(0.5)), P99: us(c.Quantile(0.99)), Max: us(c.Max)}, nil
}

// fill makes data that compresses to about half its size.
func fill(p []byte, rng *rand.Rand) {
	for i := 0; i+8 <= len(p)/2; i += 8 {
		v := rng.Uint64()
		for j := range 8 {
			p[i+j] = byte(v >> (8 * j))
		}
	}
}
