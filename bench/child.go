package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// children are the programs that this binary can run as. Each calls ready with
// its address when it serves, and returns soon after ctx ended.
var children = map[string]func(ctx context.Context, args []string, ready func(address string)) error{
	"store":   storeChild,
	"etcd":    etcdChild,
	"rpc":     rpcChild,
	"grpc":    grpcChild,
	"backend": backendChild,
	"proxy":   proxyChild,

	"disk":      diskChild,
	"peer":      peerChild,
	"idledisks": idleDisksChild,
}

// profileVar names the file for the CPU profile of a child.
const profileVar = "BENCH_CPU_PROFILE"

// child runs this program as a child.
func child(name string, args []string) int {
	f := children[name]
	if f == nil {
		fmt.Fprintf(os.Stderr, "bench: no child %q\n", name)
		return 2
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the parent decides
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if path := os.Getenv(profileVar); path != "" {
		p, err := os.Create(path)
		if err == nil {
			err = pprof.StartCPUProfile(p)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer p.Close()
		defer pprof.StopCPUProfile()
	}
	if err := f(ctx, args, func(address string) { fmt.Println("ready", address) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a running child.
type process struct {
	name    string
	address string
	log     string
	cmd     *exec.Cmd
	stdin   io.Closer
	done    chan struct{} // closed when it has ended
}

// childTimeout bounds how long a child may take to be ready, and to end.
const childTimeout = 60 * time.Second

// start runs this program as a child and waits until it is ready.
func (b *bench) start(ctx context.Context, name string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var env []string
	if b.opt.profile != "" && (name == "store" || name == "rpc" || name == "disk") {
		if err := os.MkdirAll(b.opt.profile, 0o755); err != nil {
			return nil, err
		}
		env = append(env, profileVar+"="+filepath.Join(b.opt.profile, name+".pprof"))
	}
	return b.scratch.launch(ctx, name, env, exe, append([]string{"child", name}, args...)...)
}

func (s *scratch) launch(ctx context.Context, name string, env []string, path string, args ...string) (*process, error) {
	logFile, err := os.OpenFile(s.path("logs", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	p := &process{name: name, log: logFile.Name(), done: make(chan struct{}), cmd: exec.Command(path, args...)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), env...), logFile
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not for the terminal's Ctrl-C
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	said := make(chan string, 1)
	go func() {
		defer close(p.done)
		defer func() { _ = p.cmd.Wait() }()
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			if a, ok := strings.CutPrefix(sc.Text(), "ready "); ok {
				select {
				case said <- a:
				default:
				}
			}
		}
	}()
	select {
	case p.address = <-said:
		return p, nil
	case <-p.done:
		err = fmt.Errorf("%s ended at once: %s", name, tail(p.log))
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(childTimeout):
		err = fmt.Errorf("%s is not ready after %s: %s", name, childTimeout, tail(p.log))
	}
	return nil, errors.Join(err, p.stop())
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
	_ = p.stdin.Close()
}

// stop ends the child and waits for it.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	_ = p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(childTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end by itself: %s", p.name, tail(p.log))
	}
	if st := p.cmd.ProcessState; st != nil && !st.Success() {
		return fmt.Errorf("%s ended with %s: %s", p.name, st, tail(p.log))
	}
	return nil
}

// tail returns the end of a log.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-2000):]))
}
