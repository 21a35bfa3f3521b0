package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/instance"
)

// benchDriver measures the driver alone, in an installation without a server.
func benchDriver(ctx context.Context, b *bench, n int) (err error) {
	dir := b.scratch.path("install-driver")
	in, err := instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		return err
	}
	logFile, err := os.Create(b.scratch.path("logs", "driver.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	log := slog.New(slog.NewTextHandler(logFile, nil))
	ctd := containerd.New(containerd.Config{Instance: in, BinDir: b.opt.bin, Logger: log})
	if err := ctd.Start(ctx); err != nil {
		return err
	}
	images := containerd.NewImages(ctd)
	d := runsc.New(runsc.Config{
		Instance: in, BinDir: b.opt.bin, Containerd: ctd, Images: images,
		Network: network.New(network.Config{Instance: in, Logger: log}), Logger: log,
	})
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- d.Run(running) }()
	go func() { ended <- ctd.Run(running) }()
	defer func() {
		cleanup := context.WithoutCancel(ctx)
		err = errors.Join(err, d.Shutdown(cleanup))
		cancel()
		err = errors.Join(err, <-ended, <-ended, d.Close(), ctd.Stop(cleanup))
	}()
	if err := d.Start(ctx); err != nil {
		return err
	}
	image, err := importImage(ctx, b, images)
	if err != nil {
		return err
	}
	spec := execution.Spec{
		ID: "stays", Image: image, Command: []string{"sleep", "1000"}, Network: execution.NetworkBridge,
		CPUMillis: sandboxCPU, MemoryBytes: sandboxMemMiB << 20, PIDs: 1024, StopTimeout: time.Second,
	}
	if _, err := d.Ensure(ctx, spec); err != nil {
		return err
	}
	took, err := repeat(ctx, n, func() error { return execDriver(ctx, d, spec.ID) })
	if err != nil {
		return err
	}
	b.report.figure("exec through the driver, p50", "ms", took.ms(50), execGoalP50)
	b.report.figure("exec through the driver, p99", "ms", took.ms(99), execGoalP99)

	var cold []float64
	for k := range b.rounds(10) {
		s := spec
		s.ID = fmt.Sprintf("cold-%d", k)
		began := time.Now()
		if _, err := d.Ensure(ctx, s); err != nil {
			return err
		}
		if err := execDriver(ctx, d, s.ID); err != nil {
			return err
		}
		cold = append(cold, time.Since(began).Seconds()*1000)
		if err := d.Delete(ctx, s.ID); err != nil {
			return err
		}
	}
	b.report.figure("create to first exec, driver alone", "ms", median(cold), 0)
	return nil
}
