package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// areas are the benchmarks in order. Of those that need an installation, memory
// comes first: it measures an installation after one deploy.
var areas = []struct {
	name string
	doc  string
	run  func(context.Context, *bench) error
}{
	{"cli", "start-up time and size of the client r against the program runtime", benchCLI},
	{"store", "conditional puts and watch latency against etcd", benchStore},
	{"rpc", "calls and streams against grpc-go", benchRPC},
	{"disks", "the virtual disk against nbdkit, qemu-nbd and a loop device", benchDisks},
	{"recovery", "opening the virtual disk after a crash, snapshots and clones of it", benchRecovery},
	{"diskstate", "memory and garbage of the virtual disk", benchDiskState},
	{"filesystems", "a database and a build on an attached disk against a loop device; a disk with an S3 server", benchFilesystems},
	{"logs", "appending and searching what apps printed", benchLogs},
	{"memory", "idle memory of the control plane", benchMemory},
	{"sandbox", "create to first exec against runsc run, exec latency", benchSandbox},
	{"agents", "claims, snapshots, forks, bursts and files of sandboxes, against runsc and cp", benchAgents},
	{"faces", "commands and streams by REST, E2B, MCP, SSH and previews against RPC", benchFaces},
	{"deploy", "warm redeploy against buildctl", benchDeploy},
	{"wake", "first request for an app that sleeps", benchWake},
	{"dashboard", "first paint of the dashboard", benchDashboard},
	{"ingress", "requests against httputil.ReverseProxy, Caddy and the sandbox itself", benchIngress},
}

// bench is one run.
type bench struct {
	opt     options
	scratch *scratch
	report  *report
	inst    *install // started by the first benchmark that needs it
}

type options struct {
	bin, src, dir  string
	json, markdown string
	profile        string
	quick          bool
	logs           int64 // MiB of text that the benchmark logs appends
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		os.Exit(child(os.Args[2], os.Args[3:]))
	}
	os.Exit(run())
}

func run() int {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of runtime and its toolchain")
	flag.StringVar(&o.src, "src", ".", "root of the repository, for examples")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "directory on the disk to measure on")
	flag.StringVar(&o.json, "json", "", "write the results as JSON to this file; - is standard output, instead of the table")
	flag.StringVar(&o.markdown, "markdown", "", "write the table to this file")
	flag.StringVar(&o.profile, "profile", "", "write CPU profiles of our side to this directory")
	flag.BoolVar(&o.quick, "quick", false, "fewer and shorter rounds: to see that it works, not to measure")
	flag.Int64Var(&o.logs, "logs-size", 1024, "MiB of text that the benchmark logs appends and searches, from 64; at most 128 with -quick")
	flag.Usage = usage
	flag.Parse()
	if o.logs < 64 {
		fmt.Fprintf(os.Stderr, "bench: --logs-size %d is below 64 MiB\n", o.logs)
		return 2
	}
	selected := flag.Args()
	for _, s := range selected {
		if !slices.ContainsFunc(areas, func(a struct {
			name string
			doc  string
			run  func(context.Context, *bench) error
		}) bool {
			return a.name == s
		}) {
			fmt.Fprintf(os.Stderr, "bench: there is no benchmark %q\n", s)
			usage()
			return 2
		}
	}
	for _, p := range []*string{&o.bin, &o.src, &o.dir, &o.profile} {
		if *p != "" {
			abs, err := filepath.Abs(*p)
			if err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
				return 1
			}
			*p = abs
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := measure(ctx, o, selected)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: interrupted; everything was cleaned up")
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: bench [flags] [benchmark...]    (all of them unless named)")
	for _, a := range areas {
		fmt.Fprintf(os.Stderr, "  %-9s %s\n", a.name, a.doc)
	}
	flag.PrintDefaults()
}

// measure runs the benchmarks and always cleans up. The failure of one
// benchmark does not prevent the others.
func measure(ctx context.Context, o options, selected []string) (err error) {
	b := &bench{opt: o, report: newReport(o)}
	if b.scratch, err = newScratch(ctx, o); err != nil {
		return err
	}
	defer func() {
		progress("cleaning up")
		if b.inst != nil {
			err = errors.Join(err, b.inst.stop())
		}
		err = errors.Join(err, b.scratch.remove())
	}()
	var failed []error
	for _, a := range areas {
		if len(selected) > 0 && !slices.Contains(selected, a.name) {
			continue
		}
		progress("%s: %s", a.name, a.doc)
		began := time.Now()
		b.report.area = a.name
		if err := a.run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = append(failed, fmt.Errorf("%s: %w", a.name, err))
			progress("%s failed: %v", a.name, err)
			continue
		}
		progress("%s took %s", a.name, time.Since(began).Round(100*time.Millisecond))
	}
	return errors.Join(append(failed, b.report.write(strings.Join(selected, " ")))...)
}

// rounds is how many turns each side has.
func (b *bench) rounds(n int) int {
	if b.opt.quick {
		return min(n, 3)
	}
	return n
}

// turn is how long one turn lasts.
func (b *bench) turn() time.Duration {
	if b.opt.quick {
		return 400 * time.Millisecond
	}
	return time.Second
}

// progress prints the current step for people.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
