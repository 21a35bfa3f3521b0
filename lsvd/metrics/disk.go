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

// Backend is what a disk does; [lsvd.Device] has it.
type Backend interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64, flags lsvd.Flags) error
	Zero(ctx context.Context, off, n int64, flags lsvd.Flags) error
	Trim(ctx context.Context, off, n int64, flags lsvd.Flags) error
	Flush(ctx context.Context) error
	Status(off, n int64, f func(off, n int64, hole bool) bool) error
}

// Disk is a disk as one frontend sees it, counted.
type Disk struct {
	Backend
	ops  [ops]opCounts
	busy atomic.Int64
}

type opCounts struct {
	latency Histogram
	bytes   atomic.Int64
	errors  atomic.Int64
}

// NewDisk counts the operations of b.
func NewDisk(b Backend) *Disk { return &Disk{Backend: b} }

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

// ReadAt implements [Backend].
func (d *Disk) ReadAt(ctx context.Context, p []byte, off int64) error {
	return d.do(Read, int64(len(p)), func() error { return d.Backend.ReadAt(ctx, p, off) })
}

// WriteAt implements [Backend].
func (d *Disk) WriteAt(ctx context.Context, p []byte, off int64, flags lsvd.Flags) error {
	return d.do(Write, int64(len(p)), func() error { return d.Backend.WriteAt(ctx, p, off, flags) })
}

// Zero implements [Backend].
func (d *Disk) Zero(ctx context.Context, off, n int64, flags lsvd.Flags) error {
	return d.do(Zero, n, func() error { return d.Backend.Zero(ctx, off, n, flags) })
}

// Trim implements [Backend].
func (d *Disk) Trim(ctx context.Context, off, n int64, flags lsvd.Flags) error {
	return d.do(Trim, n, func() error { return d.Backend.Trim(ctx, off, n, flags) })
}

// Flush implements [Backend].
func (d *Disk) Flush(ctx context.Context) error {
	return d.do(Flush, 0, func() error { return d.Backend.Flush(ctx) })
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
