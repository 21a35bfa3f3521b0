package serverctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/backup"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/servers/server"
)

type backupOptions struct {
	*command.Env
	config       process.Config
	recipients   []string
	passphrase   string
	withoutDisks bool
}

// NewBackup makes `r server backup`.
func NewBackup(e *command.Env) *cobra.Command {
	o := &backupOptions{Env: e}
	cmd := &cobra.Command{
		Use: "backup FILE|DIR",
		Long: `Saves the installation of this machine in one file: entities and history, keys and certificates, the configuration,
images, uploaded sources, the output of executions, the logs of builds, and disks whose data are in the state
directory. The server must be stopped. With ` + "`r server stop --keep-running`" + ` apps answer meanwhile; disks must be
detached, so they need --without-disks then. In a directory the file gets a name with the id and the time.

The memory of paused sandboxes and snapshots is not saved, nor are caches. Disks and output in S3 stay there. A store
other than the private PostgreSQL is saved without its history.

The file holds every secret of the installation with the key. Encrypt it with --recipient (a public key of age) or
--passphrase-file.`,
		Example: "  r server stop && r server backup /backups --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kudcmxvssdq9mzm && r server start\n" +
			"  r server stop --keep-running && r server backup /backups/today --without-disks; r server start",
		Args: command.Args(1, 1, "FILE|DIR"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringArrayVar(&o.recipients, "recipient", nil, "public key that the file is encrypted for (age1...); repeatable")
	cmd.Flags().StringVar(&o.passphrase, "passphrase-file", "", "file with the passphrase that the file is encrypted with")
	cmd.Flags().BoolVar(&o.withoutDisks, "without-disks", false, "leave out disks, which may be attached")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *backupOptions) run(ctx context.Context, path string) error {
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can back up the server").WithHint("sudo r server backup %s", path)
	}
	to, err := o.keys()
	if err != nil {
		return err
	}
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	if _, err := instance.Find(cfg.StateDir, cfg.RunDir); err != nil {
		return err
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, fmt.Sprintf("runtime-%s-%s.backup", in.ID, time.Now().UTC().Format("20060102T150405Z")))
	}
	f, err := atomicfile.Create(path, 0o600, atomicfile.NoReplace)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "create the backup: %w", err)
	}
	defer f.Abort()
	progress := o.Progress("back up", false)
	about, err := server.Backup(ctx, cfg, in, f, quietLog(o.Env), server.BackupOptions{Recipients: to, WithoutDisks: o.withoutDisks, Progress: progress.Phase})
	progress.End()
	if err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return errs.New(errs.FailedPrecondition, "%s exists", path).WithHint("choose another name; a backup replaces nothing")
		}
		return errs.New(errs.Unavailable, "write the backup: %w", err)
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"file": path, "encrypted": len(to) > 0, "about": about})
	}
	o.Printf("%s %s at revision %d\n", o.Paint(console.Green, "✓"), path, about.Revision)
	if len(to) == 0 {
		o.Notef("it is not encrypted, and holds every secret: keep it like a key\n")
	}
	if !about.Disks {
		o.Notef("it has no disks: `r disk backup` saves them\n")
	}
	return nil
}

func quietLog(e *command.Env) *slog.Logger {
	return slog.New(slog.NewTextHandler(e.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (o *backupOptions) keys() ([]age.Recipient, error) {
	if o.passphrase != "" && len(o.recipients) > 0 {
		return nil, exit.Usagef("--passphrase-file and --recipient exclude each other")
	}
	var to []age.Recipient
	for _, text := range o.recipients {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "--recipient: %w", err)
		}
		to = append(to, r)
	}
	if o.passphrase != "" {
		pass, err := passphrase(o.passphrase)
		if err != nil {
			return nil, err
		}
		r, err := age.NewScryptRecipient(pass)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "--passphrase-file: %w", err)
		}
		to = append(to, r)
	}
	return to, nil
}

// passphrase returns the text of a file without the end of its line.
func passphrase(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "--passphrase-file: %w", err)
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" {
		return "", errs.New(errs.InvalidArgument, "--passphrase-file: %s is empty", file)
	}
	return text, nil
}

type restoreOptions struct {
	*command.Env
	config     process.Config
	identity   string
	passphrase string
	check      bool
}

// NewRestore makes `r server restore`.
func NewRestore(e *command.Env) *cobra.Command {
	o := &restoreOptions{Env: e}
	cmd := &cobra.Command{
		Use: "restore FILE",
		Long: `Restores a backup into a state directory (--state-dir) that does not exist or is empty, on this machine or another one.
The installation keeps its id, so the old one must not run on the same machine. Every part is compared with its sum. If
the command fails or is killed, no server starts on the directory: remove it and repeat.

The configuration of the saved server is in restored.yaml of the state directory; start the server with it, or with
another one. With --check the file is only read and compared with its sums.`,
		Example: "  r server restore /backups/today --identity key.txt\n" +
			"  r server start --config /var/lib/runtime/" + server.RestoredConfig,
		Args: command.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.identity, "identity", "", "file with the private key of age that decrypts the backup")
	cmd.Flags().StringVar(&o.passphrase, "passphrase-file", "", "file with the passphrase that decrypts the backup")
	cmd.Flags().BoolVar(&o.check, "check", false, "restore nothing: compare the file with its sums")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *restoreOptions) run(ctx context.Context, path string) error {
	ids, err := o.keys()
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return errs.New(errs.NotFound, "open the backup: %w", err)
	}
	defer f.Close()
	var about *backup.About
	what := "whole"
	if o.check {
		about, err = backup.Check(f, ids)
	} else {
		if os.Geteuid() != 0 {
			return errs.New(errs.PermissionDenied, "only root can restore a server").WithHint("sudo r server restore %s", path)
		}
		cfg, cerr := o.config.Load()
		if cerr != nil {
			return cerr
		}
		what = "restored to " + cfg.StateDir
		progress := o.Progress("restore", false)
		about, err = server.Restore(ctx, cfg, f, ids, quietLog(o.Env), progress.Phase)
		progress.End()
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"file": path, "restored": !o.check, "about": about})
	}
	o.Printf("%s %s: installation %s of %s at revision %d\n", o.Paint(console.Green, "✓"), what, about.Instance, about.Time.Format(time.RFC3339), about.Revision)
	return nil
}

func (o *restoreOptions) keys() ([]age.Identity, error) {
	var ids []age.Identity
	if o.identity != "" {
		f, err := os.Open(o.identity)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "--identity: %w", err)
		}
		defer f.Close()
		if ids, err = age.ParseIdentities(f); err != nil {
			return nil, errs.New(errs.InvalidArgument, "--identity: %s has no private key of age", o.identity)
		}
	}
	if o.passphrase != "" {
		pass, err := passphrase(o.passphrase)
		if err != nil {
			return nil, err
		}
		id, err := age.NewScryptIdentity(pass)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "--passphrase-file: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
