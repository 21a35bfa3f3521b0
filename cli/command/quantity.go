package command

import (
	"math"
	"strconv"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bytes is a flag for a number of bytes, written as in app.toml: "512MB",
// "2GiB", "1048576".
type Bytes int64

// Set implements pflag.Value.
func (b *Bytes) Set(s string) error {
	n, ok := appconfig.ParseBytes(s)
	if !ok || n <= 0 {
		return errs.New(errs.InvalidArgument, "%q is not a size like 512MB or 2GiB", s)
	}
	*b = Bytes(n)
	return nil
}

// String implements pflag.Value.
func (b *Bytes) String() string {
	if *b == 0 {
		return ""
	}
	return schema.CellBytes(int64(*b))
}

// Type implements pflag.Value.
func (*Bytes) Type() string { return "size" }

// Ptr returns nil if the flag was not set.
func (b *Bytes) Ptr() *int64 {
	if *b == 0 {
		return nil
	}
	n := int64(*b)
	return &n
}

// CPU is a flag for CPUs in thousandths: "0.5", "2", "500m".
type CPU int64

// Set implements pflag.Value.
func (c *CPU) Set(s string) error {
	text, milli := strings.CutSuffix(strings.TrimSpace(s), "m")
	x, err := strconv.ParseFloat(text, 64)
	if !milli {
		x *= 1000
	}
	if err != nil || math.IsNaN(x) || x < 1 || x > 1e9 {
		return errs.New(errs.InvalidArgument, "%q is not a number of CPUs like 0.5, 2 or 500m", s)
	}
	*c = CPU(math.Round(x))
	return nil
}

// String implements pflag.Value.
func (c *CPU) String() string {
	if *c == 0 {
		return ""
	}
	return schema.CellMillis(int64(*c))
}

// Type implements pflag.Value.
func (*CPU) Type() string { return "cpus" }

// Ptr returns nil if the flag was not set.
func (c *CPU) Ptr() *int64 {
	if *c == 0 {
		return nil
	}
	n := int64(*c)
	return &n
}

// Limits describes the limits of a sandbox.
func Limits(r sandbox.Resources) string {
	return schema.CellMillis(r.CPUMillis) + " CPU, " + schema.CellBytes(r.MemoryBytes) + " memory, " + schema.Cell(r.PIDs) + " processes, " +
		schema.CellBytes(r.DiskBytes) + " disk for " + schema.Cell(r.DiskFiles) + " files of up to " + schema.CellBytes(r.FileBytes) + ", " +
		schema.Cell(r.OpenFiles) + " open files, " + schema.CellBytes(r.BandwidthBytes) + "/s network"
}
