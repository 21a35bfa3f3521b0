// Package debugbundle has `r debug bundle`: one file with the state of a server, for
// the diagnosis of a fault.
//
//	errors.txt          what could not be had, and why
//	version.json        of this program and the machine
//	status.json         r server status
//	controllers.json    r debug controllers
//	doctor.json         r doctor
//	config.yaml         of the last server
//	entities/KIND.json  ids, times, numbers and states; an entity a line
//	goroutines.txt      what the server does just now
//	metrics.txt         Prometheus metrics
//	logs/NAME.log       the ends of the logs of the server and its components
//
// Output of apps, builds and sandboxes is not in it, nor are secrets: every text goes
// through scrub, and entities through redactEntity too.
package debugbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/version"
)

const (
	maxLog      = 1 << 20  // bytes of the end of each log
	maxFile     = 4 << 20  // bytes of each other file
	maxAll      = 64 << 20 // bytes of all files, before compression
	maxEntities = 2000     // of each kind
	callTimeout = 20 * time.Second
)

type options struct {
	*command.Env
	config process.Config
	checks []doctor.Check
}

// With makes the command with the checks of a machine.
func With(checks []doctor.Check) func(*command.Env) *cobra.Command {
	return func(e *command.Env) *cobra.Command {
		o := &options{Env: e, checks: checks}
		cmd := &cobra.Command{
			Use: "bundle [FILE]",
			Long: `Writes one archive (tar.gz, at most some megabytes) with what is needed to find out what is wrong with the server of
this machine: versions, configuration, the ends of the logs, the state of controllers and entities, the checks of
` + "`r doctor`" + `, goroutines and metrics. It also works if the server does not run: errors.txt says what is missing.

It leaves out secrets, texts that users wrote in entities, and the output of apps, builds and sandboxes. Read it before
you give it away: a program may have put a secret where nobody expects one.`,
			Example: "  r debug bundle\n  r debug bundle /tmp/server.tar.gz",
			Args:    command.Args(0, 1, "FILE"),
			RunE: func(cmd *cobra.Command, args []string) error {
				path := "runtime-debug-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
				if len(args) > 0 {
					path = args[0]
				}
				return o.run(cmd.Context(), path)
			},
		}
		o.config.AddFlags(cmd)
		return cmd
	}
}

func (o *options) run(ctx context.Context, path string) error {
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "create %s: %w", path, err)
	}
	defer f.Abort()
	z := gzip.NewWriter(f)
	b := &bundle{tar: tar.NewWriter(z), time: time.Now().UTC(), left: maxAll, most: maxFile}
	o.fill(ctx, b, cfg)
	b.add("errors.txt", []byte(strings.Join(append(b.errors, ""), "\n")))
	for _, c := range []io.Closer{b.tar, z} {
		if err := c.Close(); err != nil && b.err == nil {
			b.err = err
		}
	}
	if b.err != nil {
		return errs.New(errs.Unavailable, "write %s: %w", path, b.err)
	}
	if err := f.Commit(); err != nil {
		return errs.New(errs.Unavailable, "write %s: %w", path, err)
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"file": path, "files": b.names, "errors": b.errors})
	}
	o.Printf("%s %s: %d files\n", o.Paint(console.Green, "✓"), path, len(b.names))
	for _, e := range b.errors {
		o.Notef("missing: %s\n", e)
	}
	return nil
}

// bundle is the archive.
type bundle struct {
	tar    *tar.Writer
	time   time.Time
	left   int // bytes
	most   int // bytes of one file
	names  []string
	errors []string
	err    error // of writing
}

// add adds a file; of one that is too long the end.
func (b *bundle) add(name string, text []byte) {
	text = scrub(text)
	limit := min(b.most, b.left)
	if len(text) > limit {
		text = append([]byte("...\n"), text[len(text)-max(limit-4, 0):]...)
	}
	b.left -= min(b.left, len(text))
	if b.err == nil {
		b.err = b.tar.WriteHeader(&tar.Header{Name: "runtime-debug/" + name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text)), ModTime: b.time})
	}
	if b.err == nil {
		_, b.err = b.tar.Write(text)
	}
	b.names = append(b.names, name)
}

func (b *bundle) json(name string, v any, err error) {
	if err == nil {
		var text []byte
		if text, err = json.MarshalIndent(v, "", "  "); err == nil {
			b.add(name, text)
		}
	}
	b.missing(name, err)
}

func (b *bundle) missing(name string, err error) {
	if err != nil {
		b.errors = append(b.errors, string(scrub(fmt.Appendf(nil, "%s: %v", name, err))))
	}
}

func (o *options) fill(ctx context.Context, b *bundle, cfg *config.Config) {
	var u unix.Utsname
	_ = unix.Uname(&u) // empty fields say that it failed
	b.json("version.json", map[string]any{
		"runtime": version.Get(), "kernel": unix.ByteSliceToString(u.Release[:]), "machine": unix.ByteSliceToString(u.Machine[:]), "time": b.time,
	}, nil)
	var text bytes.Buffer
	if err := config.Generate(&text, cfg); err == nil {
		b.add("config.yaml", text.Bytes())
	} else {
		b.missing("config.yaml", err)
	}
	o.Options.StateDir, o.Options.RunDir = cfg.StateDir, cfg.RunDir
	findings, err := doctor.Findings(ctx, o.Env, o.checks)
	b.json("doctor.json", findings, err)
	o.server(ctx, b)
	in, err := instance.Find(cfg.StateDir, cfg.RunDir)
	if err != nil {
		b.missing("logs", err)
		return
	}
	for name, path := range map[string]string{"goroutines.txt": "/debug/goroutines", "metrics.txt": "/metrics"} {
		text, err := get(ctx, in.Socket("metrics.sock"), path)
		if err == nil {
			b.add(name, text)
		}
		b.missing(name, err)
	}
	logs, _ := filepath.Glob(in.State("logs", "*.log")) // the pattern is valid
	for _, l := range logs {
		if filepath.Base(l) == "access.log" {
			continue // requests of users
		}
		text, err := tail(l)
		if err == nil {
			b.add("logs/"+filepath.Base(l), text)
		}
		b.missing("logs/"+filepath.Base(l), err)
	}
}

// server adds what the server says.
func (o *options) server(ctx context.Context, b *bundle) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := o.Connect(ctx)
	if err != nil {
		b.missing("status.json, controllers.json and entities", err)
		return
	}
	st, err := server.NewServerClient(c).Status(ctx)
	b.json("status.json", st, err)
	ctl, err := server.NewDebugClient(c).Controllers(ctx)
	b.json("controllers.json", ctl, err)
	for _, k := range api.Kinds() {
		records, _, err := o.ListRecords(ctx, k, true, nil)
		name := "entities/" + k.Name + ".json"
		if err != nil {
			b.missing(name, err)
			continue
		}
		if len(records) > maxEntities {
			b.missing(name, fmt.Errorf("only the first %d of %d", maxEntities, len(records)))
			records = records[:maxEntities]
		}
		var lines bytes.Buffer
		for i := range records {
			x, err := k.Decode(&records[i])
			var text []byte
			if err == nil {
				text, err = json.Marshal(x)
			}
			if err == nil {
				text, err = redactEntity(text)
			}
			if err != nil {
				b.missing(name, err)
				continue
			}
			lines.Write(append(text, '\n'))
		}
		if lines.Len() > 0 {
			b.add(name, lines.Bytes())
		}
	}
}

// tail returns the end of a file, from the beginning of a line.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, st.Size()-maxLog)
	b, err := io.ReadAll(io.NewSectionReader(f, from, maxLog))
	if from > 0 {
		_, b, _ = bytes.Cut(b, []byte("\n"))
	}
	return b, err
}

// get requests a path of the server's socket for metrics.
func get(ctx context.Context, socket, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxFile))
}
