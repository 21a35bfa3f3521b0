package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/proc"
)

const (
	// stopTimeout bounds the end of all processes.
	stopTimeout = 3 * time.Minute
	// endTimeout is how long the server may take to end before it is killed.
	endTimeout = 30 * time.Second
)

// supervisor rebuilds and restarts the server of an env.
type supervisor struct {
	*env
	debug       bool
	serverFlags []string          // further flags of `runtime server start`
	built       map[string]stamp  // the source of the last build, successful or not
	sums        map[string]string // hashes of the binaries that the server runs, by name
	server      *proc.Process     // nil: none runs
}

// run builds, starts and restarts until ctx ends, and stops everything then.
func (s *supervisor) run(ctx context.Context) error {
	var err error
	if s.server, err = s.env.server(); err != nil { // left by a killed run
		return err
	}
	if err := s.watch(ctx); err != nil && ctx.Err() == nil {
		return errors.Join(err, s.stop(ctx))
	}
	return s.stop(context.WithoutCancel(ctx))
}

func (s *supervisor) watch(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last map[string]stamp
	for {
		now, err := source(s.root)
		if err != nil {
			return err
		}
		// The first build does not wait for a second poll.
		if paths := changed(s.built, now); len(paths) > 0 && (s.built == nil || len(changed(last, now)) == 0) {
			s.update(ctx, now, paths)
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.ended():
			s.server = nil
			s.say("the server ended by itself; %s says why. It is started again after the next change", s.serverLog())
		}
	}
}

// ended is closed when the server has ended.
func (s *supervisor) ended() <-chan struct{} {
	if s.server == nil {
		return nil
	}
	return s.server.Done()
}

// update builds the source and restarts the server if the binaries changed.
func (s *supervisor) update(ctx context.Context, now map[string]stamp, paths []string) {
	began := time.Now()
	first := s.built == nil
	if first {
		s.say("building into %s", s.bin)
	} else {
		s.say("%s changed, building", list(paths))
	}
	s.built = now
	out, err := s.build(ctx, now)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		fmt.Fprint(s.out, out)
		kept := "the old server keeps running"
		if s.server == nil {
			kept = "no server runs"
		}
		s.say("the build failed (%v); %s until a change that builds", err, kept)
		return
	}
	sums, err := s.sumBinaries()
	if err != nil {
		s.say("%v", err)
		return
	}
	took := time.Since(began)
	if s.server != nil && !differ(s.sums, sums) {
		s.say("built in %.1f s; the binaries are the same, nothing to restart", took.Seconds())
		return
	}
	if err := s.restart(ctx); err != nil {
		if ctx.Err() == nil {
			s.say("%v", err)
		}
		return
	}
	s.sums = sums
	s.say("server runs (pid %d): built in %.1f s, ready after %.1f s", s.server.PID(), took.Seconds(), time.Since(began).Seconds())
	if first {
		s.say("apps at http://<app>.localhost:%d/ · a shell with r: make dev-shell · stop everything: Ctrl-C", s.port)
	}
}

// list is some paths for a message.
func list(paths []string) string {
	if len(paths) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(paths[:3], ", "), len(paths)-3)
	}
	return strings.Join(paths, ", ")
}

// ingressDir has the code of the ingress process, which is restarted only for a
// change of it: a server replaces an ingress of another version.
const ingressDir = "servers/ingress"

// build makes the binaries and returns what the build printed. It stamps them
// with a hash of the ingress's code as their commit.
func (s *supervisor) build(ctx context.Context, files map[string]stamp) (string, error) {
	commit, err := sum(s.root, below(files, ingressDir))
	if err != nil {
		return "", err
	}
	var buf bytes.Buffer
	for _, args := range s.builds() {
		cmd := s.command(ctx, "hack/build.sh", args...)
		cmd.Env = s.vars("RUNTIME_BIN="+s.bin, "RUNTIME_COMMIT=dev-"+commit)
		cmd.Stdout, cmd.Stderr = &buf, &buf
		if err := cmd.Run(); err != nil {
			return buf.String(), err
		}
	}
	return buf.String(), nil
}

// builds are the arguments of hack/build.sh, one run each.
func (s *supervisor) builds() [][]string {
	if s.debug {
		return [][]string{nil, {"--debug"}}
	}
	return [][]string{nil}
}

// program is the path of the server's binary.
func (s *supervisor) program() string {
	if s.debug {
		return filepath.Join(s.bin, "runtime-debug")
	}
	return filepath.Join(s.bin, "runtime")
}

// sumBinaries hashes the binaries that the server and new sandboxes run.
func (s *supervisor) sumBinaries() (map[string]string, error) {
	sums := map[string]string{}
	for _, path := range []string{s.program(), filepath.Join(s.bin, "runtime-agent"), filepath.Join(s.bin, "runtime-launch")} {
		v, err := sum("/", []string{path})
		if err != nil {
			return nil, err
		}
		sums[path] = v
	}
	return sums, nil
}

func differ(a, b map[string]string) bool {
	for path, v := range b {
		if a[path] != v {
			return true
		}
	}
	return false
}

// restart ends the server, which leaves sandboxes and all other processes
// running, and starts one from the new binaries, which adopts them.
func (s *supervisor) restart(ctx context.Context) error {
	old, err := s.env.server()
	if err != nil {
		return err
	}
	if old != nil {
		if err := old.Stop(ctx, syscall.SIGTERM, endTimeout); err != nil {
			return fmt.Errorf("end the old server: %w", err)
		}
	}
	s.server = nil
	cmd := s.command(ctx, s.program(), append([]string{"server", "start",
		"--ingress-http-address", "127.0.0.1:" + strconv.Itoa(s.port)}, s.serverFlags...)...)
	out, err := cmd.CombinedOutput()
	// A server that runs although a part of it does not work is kept.
	var finding error
	s.server, finding = s.env.server()
	if err != nil || finding != nil || s.server == nil {
		return fmt.Errorf("the server did not start: %w\n%s", errors.Join(err, finding), out)
	}
	return nil
}

// stop ends everything of the installation; its state stays.
func (e *env) stop(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(e.state, "instance-id")); errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever started
	}
	program := filepath.Join(e.bin, "runtime")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("stop the server of %s: %w (run make dev once more, which builds it)", e.state, err)
	}
	e.say("stopping the server and everything that it runs")
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	out, err := e.command(ctx, program, "server", "stop").CombinedOutput()
	if err != nil {
		return fmt.Errorf("stop the server: %w\n%s", err, out)
	}
	e.say("everything is stopped; apps are back after the next make dev")
	return nil
}

// follow copies the text that is appended to a file from now on, until stop.
func follow(path string, w io.Writer) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	var offset int64
	if st, err := os.Stat(path); err == nil {
		offset = st.Size()
	}
	copyNew := func() {
		f, err := os.Open(path)
		if err != nil {
			return // not there yet
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.Size() < offset {
			offset = 0 // the file was started again
		}
		n, _ := io.Copy(w, io.NewSectionReader(f, offset, 1<<62)) // the end of the terminal ends dev by a signal
		offset += n
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				copyNew()
				return
			case <-tick.C:
				copyNew()
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
