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
	dir    string
	runsc  string
	rootfs string
	spec   specs.Spec
	rounds int
}

func newBare(ctx context.Context, b *bench) (*bare, error) {
	r := &bare{dir: b.scratch.path("bare"), runsc: filepath.Join(b.opt.bin, "runsc")}
	r.rootfs = filepath.Join(r.dir, "bundle", "rootfs")
	if err := os.MkdirAll(r.rootfs, 0o755); err != nil {
		return nil, err
	}
	if err := unpackImage(ctx, b, r.rootfs); err != nil {
		return nil, fmt.Errorf("unpack the image: %w", err)
	}
	quota, period, memory := int64(sandboxCPU*100), uint64(100_000), int64(sandboxMemMiB<<20)
	r.spec = specs.Spec{
		Version: specs.Version, Hostname: "bare", Root: &specs.Root{Path: "rootfs"},
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

// run runs the command once and returns how long runsc took.
func (r *bare) run(ctx context.Context) (time.Duration, error) {
	r.rounds++
	id := fmt.Sprintf("rt-bench-%d-%d", os.Getpid(), r.rounds)
	r.spec.Linux.CgroupsPath = "/" + id
	b, err := json.Marshal(&r.spec)
	if err != nil {
		return 0, err
	}
	bundle := filepath.Join(r.dir, "bundle")
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o644); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, r.runsc, "--root", filepath.Join(r.dir, "root"), "--platform=systrap", "--network=sandbox",
		"--overlay2=root:self,size="+strconv.Itoa(10<<30), "run", "--bundle", bundle, id)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		// A runsc that is killed here leaves a sandbox.
		_ = exec.Command(r.runsc, "--root", filepath.Join(r.dir, "root"), "delete", "--force", id).Run()
		return 0, fmt.Errorf("runsc run: %w: %s", err, out)
	}
	return took, nil
}

// close unmounts what runsc leaves mounted.
func (r *bare) close() {
	m := filepath.Join(r.dir, "root", "null-netns")
	if err := unix.Unmount(m, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		progress("cannot unmount %s: %v", m, err)
	}
}
