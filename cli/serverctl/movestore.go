package serverctl

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/servers/server"
)

type moveStoreOptions struct {
	*command.Env
	config   process.Config
	from, to string
}

// NewMoveStore makes `r server move-store`.
func NewMoveStore(e *command.Env) *cobra.Command {
	o := &moveStoreOptions{Env: e}
	cmd := &cobra.Command{
		Use: "move-store",
		Long: `Copies every entity of the server of this machine from its store to another one: the private PostgreSQL, another
PostgreSQL, SQLite or etcd. The server must be stopped, and every other server that uses one of the stores. The target
must be empty. Ids, revisions, times and sealed secrets stay as they are; the keys of the secrets stay in the state
directory. Each lease gets its full time when the server starts.

The copy is verified by number and digest. The source stays as it is. If the command is interrupted or killed, repeat
it: no server starts on a part of a copy. Afterwards start the server with --store-url, or store.url in its
configuration.

The history (audit, events, executions, network requests) is not copied.`,
		Example: "  r server stop && r server move-store --to sqlite:///var/lib/runtime-store/store.db\n" +
			"  r server move-store --from sqlite:///var/lib/runtime-store/store.db --to private\n" +
			"  r server move-store --to etcd://10.0.0.1:2379,10.0.0.2:2379/runtime",
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&o.from, "from", "", "URL of the source as in store.url, or "+server.PrivateStore+" for the private PostgreSQL; default: that of the server")
	cmd.Flags().StringVar(&o.to, "to", "", "URL of the target, or "+server.PrivateStore)
	o.config.AddFlags(cmd)
	return cmd
}

func (o *moveStoreOptions) run(ctx context.Context) error {
	if o.to == "" {
		return exit.Usagef("--to is missing: the URL of the target, or %s", server.PrivateStore)
	}
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	if o.from == "" {
		if o.from = cfg.Store.URL; o.from == "" {
			o.from = server.PrivateStore
		}
	}
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can move the store of the server").WithHint("sudo r server move-store --to URL")
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "instance-id")); errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.NotFound, "%s contains no installation", cfg.StateDir).WithHint("name that of the server: --state-dir")
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(o.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	progress := o.Progress(string(transfer.StepRead), false)
	res, err := server.MoveStore(ctx, in, o.from, o.to, log, func(step transfer.Step, done, all int64) {
		if progress.What() != string(step) {
			progress.Phase(string(step))
		}
		progress.Set(done, all)
	})
	progress.End()
	if err != nil {
		return err
	}
	return o.result(res)
}

func (o *moveStoreOptions) result(res *transfer.Result) error {
	if o.JSON {
		return o.PrintJSON(map[string]any{
			"from": withoutPassword(o.from), "to": withoutPassword(o.to), "entities": res.Entities(), "kinds": res.Kinds, "leases": res.Leases,
			"bytes": res.Bytes, "digest": res.Digest(), "already_there": res.Already,
		})
	}
	what := "copied"
	if res.Already {
		what = "nothing to do: the target has already"
	}
	o.Printf("%s %s %d entities and %d leases, digest %s\n", o.Paint(console.Green, "✓"), what, res.Entities(), res.Leases, res.Digest())
	if o.to == server.PrivateStore {
		o.Notef("start the server without store.url; the history stays in the old store\n")
	} else {
		o.Notef("start the server with --store-url %s; the history stays in the old store\n", withoutPassword(o.to))
	}
	return nil
}

// withoutPassword returns a URL for people. That of a store may have a password.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "URL" // etcd's may name several hosts, and has no password
	}
	return u.Redacted()
}
