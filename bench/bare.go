package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// bare runs runsc alone, without the product, on the same root file system, as
// a plain directory.
type bare struct {
	name   string
	dir    string
	runsc  string
	rootfs string
	spec   specs.Spec
	rounds int
}

func newBare(ctx context.Context, b *bench, name, image string) (*bare, error) {
	r := &bare{name: name, dir: b.scratch.path("bare-" + name), runsc: filepath.Join(b.opt.bin, "runsc")}
	r.rootfs = filepath.Join(r.dir, "rootfs")
	if err := os.MkdirAll(r.rootfs, 0o755); err != nil {
		return nil, err
	}
	if err := unpackImage(ctx, b, image, r.rootfs); err != nil {
		return nil, fmt.Errorf("unpack the image: %w", err)
	}
	quota, period, memory := int64(sandboxCPU*100), uint64(100_000), int64(sandboxMemMiB<<20)
	r.spec = specs.Spec{
		Version: specs.Version, Hostname: "bare", Root: &specs.Root{Path: r.rootfs},
		Process: &specs.Process{Args: trueCommand, Cwd: "/", NoNewPrivileges: true, Env: []string{"PATH=/usr/bin:/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
			Resources: &specs.LinuxResources{
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Memory: &specs.LinuxMemory{Limit: &memory},
			},
		},
	}
	return r, nil
}

// next returns the id of another container.
func (r *bare) next() string {
	r.rounds++
	return fmt.Sprintf("rt-bench-%d-%s-%d", os.Getpid(), r.name, r.rounds)
}

// bundle makes the bundle of a container.
func (r *bare) bundle(id string, command ...string) (string, error) {
	spec, process, linux := r.spec, *r.spec.Process, *r.spec.Linux
	process.Args, linux.CgroupsPath = command, "/"+id
	spec.Process, spec.Linux = &process, &linux
	b, err := json.Marshal(&spec)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.dir, "bundles", id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}

func (r *bare) command(ctx context.Context, args ...string) error {
	args = append([]string{"--root", filepath.Join(r.dir, "root"), "--platform=systrap", "--network=sandbox", "--overlay2=root:self,size=" + strconv.Itoa(10<<30)}, args...)
	if err := exec.CommandContext(ctx, r.runsc, args...).Run(); err != nil { // without pipes, which a sandbox would keep open
		return fmt.Errorf("runsc %v: %w", args, err)
	}
	return nil
}

// run runs the command once and returns how long runsc took.
func (r *bare) run(ctx context.Context) (time.Duration, error) { return r.runAs(ctx, r.next()) }

func (r *bare) runAs(ctx context.Context, id string) (time.Duration, error) {
	bundle, err := r.bundle(id, trueCommand...)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = r.command(ctx, "run", "--bundle", bundle, id)
	took := time.Since(began)
	if err != nil {
		err = errors.Join(err, r.remove(context.WithoutCancel(ctx), id)) // a killed runsc leaves a sandbox
	}
	return took, err
}

// start starts a container that runs on.
func (r *bare) start(ctx context.Context, id string) error {
	bundle, err := r.bundle(id, sleepCommand...)
	if err != nil {
		return err
	}
	return r.command(ctx, "run", "--detach", "--bundle", bundle, id)
}

// checkpoint saves a container and ends it.
func (r *bare) checkpoint(ctx context.Context, id, image string) error {
	return r.command(ctx, "checkpoint", "--compression=none", "--image-path", filepath.Join(r.dir, image), id)
}

func (r *bare) restore(ctx context.Context, id, image string) error {
	bundle, err := r.bundle(id, sleepCommand...)
	if err != nil {
		return err
	}
	return r.command(ctx, "restore", "--detach", "--bundle", bundle, "--image-path", filepath.Join(r.dir, image), id)
}

func (r *bare) remove(ctx context.Context, id string) error {
	return r.command(ctx, "delete", "--force", id)
}

// close unmounts what runsc leaves mounted.
func (r *bare) close() {
	m := filepath.Join(r.dir, "root", "null-netns")
	if err := unix.Unmount(m, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		progress("cannot unmount %s: %v", m, err)
	}
}
