package serverctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

const (
	unitName = "runtime.service"
	unitFile = "/etc/systemd/system/" + unitName
	unitConf = "/etc/runtime/runtime.yaml"
)

// unit is the unit of systemd for a program with a configuration. The control plane
// ends alone (KillMode), so that sandboxes and the ingress outlive a restart, and has
// the control groups below its own to itself (Delegate).
const unit = `# Written by r server install.
[Unit]
Description=Miren Runtime server
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=%s server run --config %s
KillMode=process
Delegate=yes
Restart=always
RestartSec=1
TimeoutStopSec=60
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`

type installOptions struct {
	*command.Env
	config  process.Config
	root    string
	noStart bool
}

func (o *installOptions) path(p string) string { return filepath.Join(o.root, p) }

// NewInstall makes `r server install`.
func NewInstall(e *command.Env) *cobra.Command {
	o := &installOptions{Env: e}
	cmd := &cobra.Command{
		Use: "install",
		Long: `Makes the server of this machine a service of systemd that runs this program, and starts it: the unit is
` + unitFile + `, and the configuration ` + unitConf + `, which is written from the flags if it does not exist. A restart
of the service ends the control plane only; apps and sandboxes go on.`,
		Example: "  r server install --ingress-http-address 0.0.0.0:80\n  r server install --no-start",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.install(cmd.Context()) },
	}
	cmd.Flags().StringVar(&o.root, "root", "", "directory that the files are written below, as for an image; systemd is not called")
	cmd.Flags().BoolVar(&o.noStart, "no-start", false, "write the files, and do not start the service")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *installOptions) install(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	exe, err := program()
	if err != nil {
		return err
	}
	if err := o.write(exe, cfg); err != nil {
		return err
	}
	if o.root == "" {
		if err := systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
		if !o.noStart {
			if err := systemctl(ctx, "enable", "--now", unitName); err != nil {
				return err
			}
		}
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"unit": o.path(unitFile), "config": o.path(unitConf), "program": exe, "started": o.root == "" && !o.noStart})
	}
	o.Printf("%s %s runs %s with %s\n", o.Paint(console.Green, "✓"), o.path(unitFile), exe, o.path(unitConf))
	return nil
}

// write writes the unit, and the configuration unless it is there.
func (o *installOptions) write(exe string, cfg *config.Config) error {
	if strings.ContainsAny(exe, " \t\n\"'%$\\") {
		return errs.New(errs.FailedPrecondition, "the path of the program, %q, has characters that a unit cannot have", exe).WithHint("unpack the archive elsewhere, as in /opt/runtime")
	}
	for _, p := range []string{unitFile, unitConf} {
		if err := os.MkdirAll(filepath.Dir(o.path(p)), 0o755); err != nil {
			return errs.New(errs.FailedPrecondition, "install: %w", err).WithHint("run as root")
		}
	}
	var text bytes.Buffer
	if err := config.Generate(&text, cfg); err != nil {
		return err
	}
	err := atomicfile.Write(o.path(unitConf), text.Bytes(), 0o600, atomicfile.NoReplace)
	if errors.Is(err, fs.ErrExist) {
		o.Notef("%s stays as it is; flags are not written to it\n", o.path(unitConf))
		err = nil
	}
	if err == nil {
		err = atomicfile.Write(o.path(unitFile), fmt.Appendf(nil, unit, exe, unitConf), 0o644)
	}
	if err != nil {
		return errs.New(errs.FailedPrecondition, "install: %w", err)
	}
	return nil
}

// program returns the path of this program, without links.
func program() (string, error) {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", errs.New(errs.Internal, "find this program: %w", err)
	}
	return exe, nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return errs.New(errs.FailedPrecondition, "systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out)).
			WithHint("without systemd use `r server start`")
	}
	return nil
}

// NewUninstall makes `r server uninstall`.
func NewUninstall(e *command.Env) *cobra.Command {
	o := &installOptions{Env: e}
	cmd := &cobra.Command{
		Use: "uninstall",
		Long: `Stops the service that ` + "`r server install`" + ` made, with everything that it runs, and removes its unit. The configuration
and the state directory stay: remove them yourself if nobody needs the data.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.uninstall(cmd.Context()) },
	}
	cmd.Flags().StringVar(&o.root, "root", "", "directory that the files are below; systemd is not called, and nothing is stopped")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *installOptions) uninstall(ctx context.Context) error {
	if _, err := os.Stat(o.path(unitFile)); err != nil {
		return errs.New(errs.NotFound, "the service is not installed: %w", err)
	}
	if o.root == "" {
		if err := systemctl(ctx, "disable", "--now", unitName); err != nil {
			return err
		}
		stop := &stopOptions{Env: o.Env, config: o.config, timeout: stopTimeout}
		if err := stop.run(ctx); err != nil {
			return err
		}
	}
	if err := os.Remove(o.path(unitFile)); err != nil {
		return errs.New(errs.FailedPrecondition, "uninstall: %w", err)
	}
	if o.root == "" {
		if err := systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
	}
	o.Printf("%s removed %s; the configuration and the state directory stay\n", o.Paint(console.Green, "✓"), o.path(unitFile))
	return nil
}

// NewUpgrade makes `r server upgrade`.
func NewUpgrade(e *command.Env) *cobra.Command {
	o := &startOptions{Env: e}
	cmd := &cobra.Command{
		Use: "upgrade",
		Long: `Makes this program the server of this machine, in place of the one that runs: unpack a new version beside the old one,
and call its r. The old control plane ends, and this one starts with the same configuration and adopts what runs: apps
answer meanwhile, and sandboxes go on with the programs that they have. The service of ` + "`r server install`" + `, if there is
one, runs this program from then on.

If the new server does not start, call the old version's r in the same way.`,
		Example: "  tar -xzf runtime-0.2.0-linux-amd64.tar.gz -C /opt/runtime && /opt/runtime/runtime-0.2.0-linux-amd64/r server upgrade",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.upgrade(cmd) },
	}
	cmd.Flags().DurationVar(&o.timeout, "timeout", startTimeout, "how long the server may take to become ready")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *startOptions) upgrade(cmd *cobra.Command) error {
	ctx := cmd.Context()
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	stop := &stopOptions{Env: o.Env, config: o.config, keep: true, timeout: stopTimeout}
	if _, err := os.Stat(unitFile); err == nil && cfg.StateDir == config.DefaultStateDir() {
		service := &installOptions{Env: o.Env, config: o.config}
		exe, err := program()
		if err != nil {
			return err
		}
		if err := service.write(exe, cfg); err != nil {
			return err
		}
		if err := systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
		return systemctl(ctx, "restart", unitName)
	}
	// The server replaces its own file when it starts.
	last, err := os.ReadFile(process.LastFile(cfg.StateDir))
	if err != nil {
		return errs.New(errs.NotFound, "no server has run on %s: %w", cfg.StateDir, err).WithHint("`r server start` starts one")
	}
	f, err := os.CreateTemp("", "runtime-upgrade-")
	if err != nil {
		return errs.New(errs.Unavailable, "upgrade: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(last)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return errs.New(errs.Unavailable, "upgrade: %w", err)
	}
	if err := stop.run(ctx); err != nil {
		return err
	}
	if path, err := o.config.Path(); err == nil && path == "" {
		if err := cmd.Flags().Set("config", f.Name()); err != nil {
			return errs.New(errs.Internal, "upgrade: %w", err)
		}
	}
	return o.run(ctx)
}
