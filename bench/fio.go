package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// load is a workload of fio.
type load struct {
	name string
	args string
	mib  bool  // MiB/s instead of IOPS
	size int64 // size of the area, from the beginning
	once bool  // write the area once instead of for a time
}

func (l load) unit() string {
	if l.mib {
		return "MiB/s"
	}
	return "IOPS"
}

// fioResult is the result of one turn.
type fioResult struct {
	rate float64 // IOPS or MiB/s
	p99  float64 // ms
}

// fio runs a workload on target.
func (b *bench) fio(ctx context.Context, l load, turn time.Duration, target ...string) (fioResult, error) {
	args := append([]string{"--name=bench", "--output-format=json", "--norandommap", "--randrepeat=0", "--size=" + strconv.FormatInt(l.size, 10)}, target...)
	args = append(args, strings.Fields(l.args)...)
	if !l.once {
		args = append(args, "--time_based", fmt.Sprintf("--runtime=%dms", turn.Milliseconds()))
	}
	cmd := exec.CommandContext(ctx, "fio", args...)
	cmd.Dir = b.scratch.dir // directory for its files
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fioResult{}, fmt.Errorf("fio %s: %w: %s%s", strings.Join(args, " "), err, stderr.String(), out[:min(len(out), 2000)])
	}
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:] // messages before the JSON
	}
	type direction struct {
		Total int64   `json:"total_ios"`
		IOPS  float64 `json:"iops"`
		BW    float64 `json:"bw_bytes"`
		Clat  struct {
			Percentile map[string]float64
		} `json:"clat_ns"`
	}
	var r struct {
		Jobs []struct {
			Error       int
			Read, Write direction
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return fioResult{}, fmt.Errorf("fio: %w: %s", err, out[:min(len(out), 500)])
	}
	if len(r.Jobs) != 1 || r.Jobs[0].Error != 0 {
		return fioResult{}, fmt.Errorf("fio failed: %s", out[:min(len(out), 500)])
	}
	d := r.Jobs[0].Read
	if r.Jobs[0].Write.Total > 0 {
		d = r.Jobs[0].Write
	}
	if d.Total == 0 {
		return fioResult{}, fmt.Errorf("fio did nothing: %s", strings.Join(args, " "))
	}
	f := fioResult{rate: d.IOPS, p99: d.Clat.Percentile["99.000000"] / 1e6}
	if l.mib {
		f.rate = d.BW / (1 << 20)
	}
	return f, nil
}

// diskSide is one of the sides that take turns with a workload.
type diskSide struct {
	name          string
	target        []string
	before, after func(context.Context) error // not measured; may be nil
}

// diskRounds lets all sides take turns with a workload, each round beginning
// with another, and returns the results of each.
func (b *bench) diskRounds(ctx context.Context, l load, n int, turn time.Duration, sides []diskSide) (map[string][]fioResult, error) {
	got := map[string][]fioResult{}
	for round := range n {
		for k := range sides {
			s := &sides[(round+k)%len(sides)]
			for _, step := range []func(context.Context) error{s.before, func(ctx context.Context) error {
				f, err := b.fio(ctx, l, turn, s.target...)
				got[s.name] = append(got[s.name], f)
				return err
			}, s.after} {
				if step == nil {
					continue
				}
				if err := step(ctx); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", l.name, s.name, err)
				}
			}
		}
	}
	return got, nil
}

// pairOf returns the results of two sides.
func pairOf(ours, peer []fioResult, of func(fioResult) float64) *pair {
	p := &pair{}
	for i := range ours {
		p.add(of(ours[i]), of(peer[i]))
	}
	return p
}

func rate(f fioResult) float64 { return f.rate }
func p99(f fioResult) float64  { return f.p99 }
