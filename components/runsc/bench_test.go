package runsc_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/runsctest"
)

// BenchmarkCreateExec measures from no sandbox to the end of the first exec.
func BenchmarkCreateExec(b *testing.B) {
	for _, network := range []execution.Network{execution.NetworkNone, execution.NetworkBridge} {
		b.Run(string(network), func(b *testing.B) {
			m := machine{runsctest.New(b)}
			n := 0
			for b.Loop() {
				s := m.spec(fmt.Sprint("bench-", n), "sleep")
				s.Network = network
				n++
				if _, err := m.Driver.Ensure(b.Context(), s); err != nil {
					b.Fatal(err)
				}
				if err := m.exec(b.Context(), s.ID); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := m.Driver.Delete(b.Context(), s.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRunscRun is the comparison: `runsc run` of a program that ends at
// once, in a network namespace of its own and a control group.
func BenchmarkRunscRun(b *testing.B) {
	bin := runsctest.Toolchain(b)
	dir := b.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(filepath.Join(rootfs, "bin"), 0o755); err != nil {
		b.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(rootfs, "bin", "guest"), "miren.dev/runtime/testsupport/executiontest/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	config := map[string]any{
		"ociVersion": "1.0.0",
		"process":    map[string]any{"args": []string{"/bin/guest", "echo"}, "cwd": "/", "user": map[string]int{"uid": 0}},
		"root":       map[string]any{"path": "rootfs"},
		"mounts":     []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{
			"cgroupsPath": fmt.Sprintf("/rt-bench-%d", os.Getpid()),
			"namespaces":  []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}},
		},
	}
	f, err := json.Marshal(config)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), f, 0o644); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		c := exec.Command(filepath.Join(bin, "runsc"), "--root", filepath.Join(dir, "run"), "run", "--bundle", dir, fmt.Sprint("bench-", n))
		if out, err := c.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	b.StopTimer()
	_ = exec.Command("umount", filepath.Join(dir, "run", "null-netns")).Run() // runsc leaves it
}

// BenchmarkVolume measures from a request with a volume to the first file that is written to
// it: by a sandbox that is made, and by one that runs and is claimed.
func BenchmarkVolume(b *testing.B) {
	for _, warm := range []bool{false, true} {
		b.Run(map[bool]string{false: "cold", true: "claimed"}[warm], func(b *testing.B) {
			m := machine{runsctest.New(b)}
			volume := []execution.Mount{{Source: b.TempDir(), Target: "/data"}}
			n := 0
			for b.Loop() {
				b.StopTimer()
				s := m.spec(fmt.Sprint("bench-", n))
				s.Command, s.Idle = nil, true
				n++
				if warm {
					if _, err := m.Driver.Ensure(b.Context(), s); err != nil {
						b.Fatal(err)
					}
				} else {
					s.Mounts = volume
				}
				b.StartTimer()
				if warm {
					if err := m.Driver.Configure(b.Context(), s.ID, execution.Identity{Claim: "c", Hostname: "h", Mounts: volume}); err != nil {
						b.Fatal(err)
					}
				} else if _, err := m.Driver.Ensure(b.Context(), s); err != nil {
					b.Fatal(err)
				}
				p, err := m.Driver.Exec(b.Context(), s.ID, execution.ExecSpec{Command: []string{"/bin/guest", "put", "/data/file", "x"}, NoInput: true})
				if err != nil {
					b.Fatal(err)
				}
				if code, err := p.Wait(b.Context()); err != nil || code != 0 {
					b.Fatal(code, err)
				}
				b.StopTimer()
				p.Close()
				if err := m.Driver.Delete(b.Context(), s.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
