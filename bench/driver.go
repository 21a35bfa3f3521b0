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

// driverInstall is an installation without a server: the driver alone.
type driverInstall struct {
	*runsc.Driver
	in     *instance.Instance
	images *containerd.Images
	image  string
	close  func() error
}

func newDriverInstall(ctx context.Context, b *bench, name string) (_ *driverInstall, err error) {
	dir := b.scratch.path("install-" + name)
	in, err := instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		return nil, err
	}
	logFile, err := os.Create(b.scratch.path("logs", name+".log"))
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(logFile, nil))
	ctd := containerd.New(containerd.Config{Instance: in, BinDir: b.opt.bin, Logger: log})
	if err := ctd.Start(ctx); err != nil {
		return nil, errors.Join(err, logFile.Close())
	}
	images := containerd.NewImages(ctd)
	d := &driverInstall{in: in, images: images, Driver: runsc.New(runsc.Config{
		Instance: in, BinDir: b.opt.bin, Containerd: ctd, Images: images,
		Network: network.New(network.Config{Instance: in, Logger: log}), Logger: log,
	})}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- d.Run(running) }()
	go func() { ended <- ctd.Run(running) }()
	d.close = func() error {
		cleanup := context.WithoutCancel(ctx)
		err := d.Shutdown(cleanup)
		cancel()
		return errors.Join(err, <-ended, <-ended, d.Close(), ctd.Stop(cleanup), logFile.Close())
	}
	if err = d.Start(ctx); err == nil {
		d.image, err = importImage(ctx, b, images, sandboxImage)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// spec describes a sandbox of the measured size.
func (d *driverInstall) spec(id string, command ...string) execution.Spec {
	return execution.Spec{
		ID: id, Image: d.image, Command: command, Idle: len(command) == 0, Network: execution.NetworkBridge,
		CPUMillis: sandboxCPU, MemoryBytes: sandboxMemMiB << 20, PIDs: 1024, StopTimeout: time.Second,
	}
}

// benchDriver measures the driver alone.
func benchDriver(ctx context.Context, b *bench, n int) (err error) {
	d, err := newDriverInstall(ctx, b, "driver")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	spec := d.spec("stays", "sleep", "1000")
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
