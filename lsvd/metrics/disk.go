package metrics

import (
	"context"
	"sync/atomic"
	"time"

	"miren.dev/runtime/lsvd"
)

// Op is a kind of operation on a disk.
type Op int

// The operations.
const (
	Read Op = iota
	Write
	Zero
	Trim
	Flush
	ops
)

var opNames = [ops]string{"read", "write", "zero", "trim", "flush"}

func (o Op) String() string { return opNames[o] }

// Ops are all operations.
func Ops() []Op { return []Op{Read, Write, Zero, Trim, Flush} }

// Disk is a disk as one frontend sees it, counted.
type Disk struct {
	lsvd.Disk
	ops  [ops]opCounts
	busy atomic.Int64
}

type opCounts struct {
	latency Histogram
	bytes   atomic.Int64
	errors  atomic.Int64
}

// NewDisk counts the operations of d.
func NewDisk(d lsvd.Disk) *Disk { return &Disk{Disk: d} }

func (d *Disk) do(op Op, n int64, f func() error) error {
	d.busy.Add(1)
	began := time.Now()
	err := f()
	d.count(op, n, time.Since(began), err)
	return err
}

// count notes the end of an operation.
func (d *Disk) count(op Op, n int64, took time.Duration, err error) {
	c := &d.ops[op]
	c.latency.Observe(took)
	d.busy.Add(-1)
	if err != nil {
		c.errors.Add(1)
		return
	}
	c.bytes.Add(n)
}

// ReadAt implements [lsvd.Disk].
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error {
	return d.do(Read, int64(len(p)), func() error { return d.Disk.ReadAt(ctx, p, off) })
}

// WriteAt implements [lsvd.Disk].
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64, flags lsvd.Flags) error {
	return d.do(Write, int64(len(p)), func() error { return d.Disk.WriteAt(ctx, p, off, flags) })
}

// Zero implements [lsvd.Disk].
func (d *Disk) Zero(ctx context.Context, off, n int64, flags lsvd.Flags) error {
	return d.do(Zero, n, func() error { return d.Disk.Zero(ctx, off, n, flags) })
}

// Trim implements [lsvd.Disk].
func (d *Disk) Trim(ctx context.Context, off, n int64, flags lsvd.Flags) error {
	return d.do(Trim, n, func() error { return d.Disk.Trim(ctx, off, n, flags) })
}

// Flush implements [lsvd.Disk].
func (d *Disk) Flush(ctx context.Context) error {
	return d.do(Flush, 0, func() error { return d.Disk.Flush(ctx) })
}

// Busy is how many operations are under way.
func (d *Disk) Busy() int64 { return d.busy.Load() }

// OpFigures are the figures of one kind of operation.
type OpFigures struct {
	Latency Counts // of those that failed too
	Bytes   int64
	Errors  int64
}

// Figures returns the figures of one kind of operation.
func (d *Disk) Figures(op Op) OpFigures {
	c := &d.ops[op]
	return OpFigures{Latency: c.latency.Counts(), Bytes: c.bytes.Load(), Errors: c.errors.Load()}
}
