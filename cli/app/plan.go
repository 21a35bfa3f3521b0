package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/stack"
)

type planOptions struct {
	deployOptions
	write bool
	force bool
}

func newPlan(e *command.Env) *cobra.Command {
	o := &planOptions{deployOptions: deployOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "plan [DIR]",
		Short: "Show how the source of a folder would be built, and why",
		Long: `Shows what is detected in a folder: the stack, versions and commands with the file that decided each, services, ports, and
the Dockerfile that is built. No server is needed.

--write-dockerfile writes that Dockerfile into the folder, where every later deployment uses it.`,
		Example: "  r app plan\n  r app plan services/shop --json\n  r app plan --write-dockerfile",
		Args:    command.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dir = "."
			if len(args) > 0 {
				o.dir = args[0]
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.app, "app", "a", "", "app; default: name in app.toml, else the folder's name")
	f.StringVar(&o.stack, "stack", "", stackFlag)
	f.BoolVar(&o.write, "write-dockerfile", false, "write the generated Dockerfile into the folder")
	f.BoolVar(&o.force, "force", false, "with --write-dockerfile: replace the Dockerfile that is there")
	return cmd
}

func (o *planOptions) run(ctx context.Context) error {
	if o.force && !o.write {
		return errs.New(errs.InvalidArgument, "--force is only for --write-dockerfile")
	}
	name, err := command.AppName(o.app, o.dir)
	if err != nil {
		return sourceError(err)
	}
	tree, plan, err := o.prepare(ctx)
	if err != nil {
		return sourceError(err)
	}
	defer tree.Close()
	if o.write {
		if err := o.writeDockerfile(plan); err != nil {
			return err
		}
	}
	return o.showPlan(name, tree, plan)
}

// writeDockerfile writes the Dockerfile of a plan into the folder. It says so when app.toml has a setting that the
// stack dockerfile refuses.
func (o *planOptions) writeDockerfile(plan *stack.Plan) error {
	file := filepath.Join(o.dir, "Dockerfile")
	if o.folder != "" {
		return errs.New(errs.FailedPrecondition, "%s is a workspace of %s, from where it is built: a Dockerfile in it would not see the lock file", o.dir, o.root).
			WithHint("build.package = %q in app.toml of %s makes it the app of that folder", o.folder, o.root)
	}
	if !plan.Generated {
		return errs.New(errs.FailedPrecondition, "%s is built as it is: there is nothing to write", filepath.Join(o.dir, plan.Path)).
			WithHint("--stack chooses another stack, whose Dockerfile --force writes")
	}
	if _, err := os.Lstat(file); err == nil && !o.force {
		return errs.New(errs.AlreadyExists, "%s exists already", file).WithHint("--force replaces it")
	}
	if err := atomicfile.Write(file, []byte(plan.Standalone()), 0o644); err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	o.Notef("wrote %s; later deployments build it\n", file)
	fsys := os.DirFS(o.dir)
	cfg, err := appconfig.Load(fsys)
	if err == nil {
		_, err = stack.Detect(fsys, cfg)
	}
	if err != nil {
		o.Notef("it is not built yet: %s\n", errors.Join(err, errors.New(errs.HintOf(err))))
	}
	return nil
}

func (o *deployOptions) showPlan(name string, tree *source.Tree, plan *stack.Plan) error {
	if o.JSON {
		return o.PrintJSON(map[string]any{
			"app": name, "stack": plan.Stack, "facts": append([]stack.Fact{}, plan.Facts...), "reasons": plan.Reasons, "warnings": plan.Warnings, "release": plan.Release, "dockerfile": plan.Dockerfile, "generated": plan.Generated,
			"bases": plan.Bases, "services": planServices(plan.Services), "env": plan.Env,
			"files": len(tree.Manifest.Files), "bytes": tree.Manifest.Bytes(), "ignored": tree.Ignored, "skipped": tree.Skipped,
		})
	}
	o.Printf("%s\n", planText(o.Env, name, plan))
	for _, f := range plan.Facts {
		from := "default"
		if f.From != "" {
			from = "from " + f.From
		}
		o.Printf("%-8s %s %s\n", f.What, f.Value, o.Paint(console.Dim, "("+from+")"))
	}
	for _, s := range plan.Services {
		o.Printf("service  %s%s\n", s.Name, serviceText(s))
	}
	o.Printf("%s, %d ignored\n", rollout.Files(len(tree.Manifest.Files)), tree.Ignored)
	for _, s := range tree.Skipped {
		o.Printf("skipped %s\n", s)
	}
	if plan.Generated {
		o.Printf("\nDockerfile:\n  %s\n", strings.ReplaceAll(strings.TrimSpace(plan.Dockerfile), "\n", "\n  "))
	}
	return nil
}

// serviceText is the port and the command of a service, for people.
func serviceText(s appconfig.Service) string {
	text := ""
	if s.Port != nil && *s.Port > 0 {
		text = fmt.Sprintf(", port %d", *s.Port)
	}
	if len(s.Command) > 0 {
		return text + ": " + strings.TrimPrefix(s.Command[len(s.Command)-1], "exec ")
	}
	return text + ": the image's command"
}

func planText(e *command.Env, name string, plan *stack.Plan) string {
	lines := []string{e.Paint(console.Bold, name) + ": " + plan.Stack}
	for _, r := range plan.Reasons {
		lines = append(lines, "  "+e.Paint(console.Dim, r))
	}
	for _, w := range plan.Warnings {
		lines = append(lines, "  "+e.Paint(console.Yellow, "warning:")+" "+w)
	}
	return strings.Join(lines, "\n")
}

// planService is a service of a plan as JSON, with the names that entities use.
// A field without a value shows its default.
type planService struct {
	Name           string            `json:"name"`
	Command        []string          `json:"command,omitempty"`
	Port           *int64            `json:"port,omitempty"`
	Protocol       string            `json:"protocol,omitempty"`
	Replicas       *int64            `json:"replicas,omitempty"`
	Scale          *planScale        `json:"scale,omitempty"`
	Concurrency    *int64            `json:"concurrency,omitempty"`
	HealthPath     string            `json:"health_path,omitempty"`
	HealthDeadline string            `json:"health_deadline,omitempty"`
	Live           *planLive         `json:"live,omitempty"`
	CPUMillis      *int64            `json:"cpu_millis,omitempty"`
	MemoryBytes    *int64            `json:"memory_bytes,omitempty"`
	PIDs           *int64            `json:"pids,omitempty"`
	StopTimeout    string            `json:"stop_timeout,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Volumes        []planVolume      `json:"volumes,omitempty"`
}

type planVolume struct {
	Disk      string `json:"disk"`
	Path      string `json:"path"`
	SizeBytes *int64 `json:"size_bytes,omitempty"`
	ReadOnly  bool   `json:"read_only"`

	Snapshots *planSnapshots `json:"snapshots,omitempty"`
}

type planSnapshots struct {
	Cron     string `json:"cron"`
	TimeZone string `json:"time_zone,omitempty"`
	Keep     *int64 `json:"keep,omitempty"`
	KeepFor  string `json:"keep_for,omitempty"`
}

type planScale struct {
	Min     *int64 `json:"min,omitempty"`
	Max     *int64 `json:"max,omitempty"`
	Idle    string `json:"idle,omitempty"`
	CPU     *int64 `json:"cpu,omitempty"`
	Suspend bool   `json:"suspend,omitempty"`
}

type planLive struct {
	Off      bool   `json:"off,omitempty"`
	Path     string `json:"path,omitempty"`
	Interval string `json:"interval,omitempty"`
	Timeout  string `json:"timeout,omitempty"`
	Failures *int64 `json:"failures,omitempty"`
}

func planServices(services []appconfig.Service) []planService {
	list := []planService{}
	for _, s := range services {
		var volumes []planVolume
		for _, v := range s.Volumes {
			one := planVolume{Disk: v.Disk, Path: v.Path, SizeBytes: v.SizeBytes, ReadOnly: v.ReadOnly}
			if t := v.Snapshots; t != nil {
				one.Snapshots = &planSnapshots{Cron: t.Cron, TimeZone: t.TimeZone, Keep: t.Keep, KeepFor: durationText(t.KeepFor)}
			}
			volumes = append(volumes, one)
		}
		var live *planLive
		if c := s.Live; c != nil {
			live = &planLive{Off: c.Off, Path: c.Path, Interval: durationText(c.Interval), Timeout: durationText(c.Timeout), Failures: c.Failures}
		}
		var scale *planScale
		if c := s.Scale; c != nil {
			scale = &planScale{Min: c.Min, Max: c.Max, Idle: durationText(c.Idle), CPU: c.CPU, Suspend: c.Suspend}
		}
		list = append(list, planService{
			Live: live, Scale: scale, Concurrency: s.Concurrency,
			Name: s.Name, Command: s.Command, Port: s.Port, Protocol: s.Protocol, Replicas: s.Replicas, HealthPath: s.HealthPath, HealthDeadline: durationText(s.HealthDeadline),
			CPUMillis: s.CPUMillis, MemoryBytes: s.MemoryBytes, PIDs: s.PIDs, StopTimeout: durationText(s.StopTimeout), Env: s.Env, Volumes: volumes,
		})
	}
	return list
}

func durationText(d *time.Duration) string {
	if d == nil {
		return ""
	}
	return d.String()
}
