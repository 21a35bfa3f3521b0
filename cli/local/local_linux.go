package local

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/handover"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

const (
	// readyTimeout bounds the start of the server.
	readyTimeout = 3 * time.Minute
	// probeTimeout bounds one question whether it answers.
	probeTimeout = 5 * time.Second
	// maxStarts is how often a server that ends meanwhile is started anew.
	maxStarts = 3
)

// Open makes this process a user of the installation, and starts its server
// unless it runs. PermissionDenied unless this process is root; FailedPrecondition
// if the program runtime is missing, or the directory has another database.
func Open(ctx context.Context, o Options) (*Installation, error) {
	i := &Installation{o: o}
	if os.Geteuid() != 0 {
		return nil, errs.New(errs.PermissionDenied, "no server is configured, and only root can run sandboxes without one").
			WithHint("run the command as root, or name a server with --server or --cluster (`r cluster add` adds one)")
	}
	if !filepath.IsAbs(o.Database) {
		return nil, errs.New(errs.InvalidArgument, "the database %q is not an absolute path", o.Database)
	}
	if err := os.MkdirAll(i.dir(), 0o711); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "directory of the local installation: %w", err)
	}
	var err error
	if i.release, err = instance.Use(ctx, i.dir()); err != nil {
		return nil, err
	}
	if err := i.start(ctx); err != nil {
		i.release()
		return nil, err
	}
	return i, nil
}

// Keep starts the server again whenever it ends, until ctx ends.
func (i *Installation) Keep(ctx context.Context, log *slog.Logger) {
	proc.Keep(ctx, "the local server", log, i.ensure)
}

// Recover starts the server again if it was killed: the new one adopts the
// processes and sandboxes of the killed one, and ends them when it is idle.
func (i *Installation) Recover(ctx context.Context) error { return i.start(ctx) }

// start returns when the server answers.
func (i *Installation) start(ctx context.Context) error {
	if err := i.checkDatabase(); err != nil {
		return err
	}
	if i.probe(ctx) == nil {
		return nil
	}
	_, err := i.ensure(ctx)
	return err
}

// ensure starts or adopts the server. It is the only process that does.
func (i *Installation) ensure(ctx context.Context) (*proc.Process, error) {
	release, err := instance.Starter(ctx, i.dir())
	if err != nil {
		return nil, err
	}
	defer release()
	exe, err := program()
	if err != nil {
		return nil, err
	}
	in, err := instance.Open(i.dir(), i.o.RunDir)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		running, err := proc.Find(in.Socket("server.json"))
		if err != nil && !errs.Is(err, errs.Corrupt) {
			return nil, err
		}
		if running == nil && i.o.Starting != nil {
			i.o.Starting(i.dir())
		}
		p, err := proc.Ensure(ctx, proc.Spec{
			Name: "the local server", Path: exe, Args: i.args(), Env: environment(os.Environ()),
			LogFile: in.State("logs", "server.log"), RecordFile: in.Socket("server.json"), ReadyTimeout: readyTimeout, Ready: i.probe, Shared: true,
		})
		// One that was found running may have been ending.
		if err == nil || running == nil || try == maxStarts || ctx.Err() != nil {
			return p, err
		}
	}
}

// probe asks the server whether it answers.
func (i *Installation) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	t, err := clientconfig.Resolve(i.Target())
	if err != nil {
		return err
	}
	c, err := t.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = server.NewServerClient(c).Version(ctx)
	return err
}

// checkDatabase refuses the directory of an installation with another database.
func (i *Installation) checkDatabase() error {
	file := filepath.Join(i.dir(), "server.yaml")
	if _, err := os.Stat(file); err != nil {
		return nil // nothing was started there yet
	}
	cfg, err := config.Load(file, nil, nil)
	if err != nil {
		return errs.Wrap(err, "the configuration of the local server")
	}
	if cfg.Store.URL != i.url() {
		return errs.New(errs.FailedPrecondition, "the installation in %s has another database, %s", i.dir(), cfg.Store.URL).
			WithHint("choose a database in a directory of its own")
	}
	return nil
}

func (i *Installation) url() string { return "sqlite://" + i.o.Database }

// args are the arguments of the server's process. They leave nothing to the
// environment that could make it listen.
func (i *Installation) args() []string {
	return []string{
		"server", "run", "--state-dir=" + i.dir(), "--run-dir=" + i.o.RunDir, "--store-url=" + i.url(), "--idle-end=" + i.o.IdleEnd.String(),
		"--build-on-demand=true", "--network-parked=1", "--ingress-http-address=", "--ingress-https-address=", "--api-address=", "--ssh-address=", "--rpc-address=", "--runners-address=", "--metrics-address=",
	}
}

// environment returns the environment of the server: this one without the
// configuration file of the machine's server.
func environment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, "RUNTIME_CONFIG=") })
}

// program returns the path of the program runtime, which may be this one.
func program() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", errs.New(errs.Internal, "find this program: %w", err)
	}
	if filepath.Base(self) == handover.Program {
		return self, nil
	}
	path, err := handover.Find()
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "sandboxes without a server need the program %s: %w", handover.Program, err).
			WithHint("install %s beside r, from the same release", handover.Program)
	}
	return path, nil
}
