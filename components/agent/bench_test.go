package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
)

// BenchmarkExec measures an exec from the call to the end of its output: of a
// minimal static program, a static Go program, and a shell.
func BenchmarkExec(b *testing.B) {
	e := inGvisor
	e.need(b)
	f := newFixture(b, e, agent.GuestConfig{})
	minimal := buildMinimal(b)
	commands := []struct {
		name    string
		command []string
	}{{"go", []string{e.tool, "true"}}, {"sh", []string{"/bin/sh", "-c", ":"}}}
	if minimal != "" {
		commands = append(commands, struct {
			name    string
			command []string
		}{"minimal", []string{"/tmp/minimal"}})
		program, err := os.ReadFile(minimal)
		if err != nil {
			b.Fatal(err)
		}
		r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{"sh", "-c", "cat >/tmp/minimal; chmod 755 /tmp/minimal"}}, string(program))
		if err != nil || r.code != 0 {
			b.Fatal(r, err)
		}
	}
	for _, c := range commands {
		b.Run(c.name, func(b *testing.B) {
			s := execution.ExecSpec{Command: c.command}
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				r := f.exec(s)
				if r.code != 0 {
					b.Fatal(r)
				}
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			at := func(p float64) float64 { return times[int(float64(len(times)-1)*p)].Seconds() * 1000 }
			b.ReportMetric(at(0.5), "p50-ms")
			b.ReportMetric(at(0.99), "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// buildMinimal compiles a static C program, where there is a compiler.
func buildMinimal(b *testing.B) string {
	out := filepath.Join(b.TempDir(), "minimal")
	cmd := exec.Command("gcc", "-static", "-O2", "-x", "c", "-o", out, "-")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if cmd.Start() != nil {
		return ""
	}
	_, _ = in.Write([]byte("int main(void) { return 0; }\n"))
	in.Close()
	if cmd.Wait() != nil {
		return ""
	}
	return out
}
