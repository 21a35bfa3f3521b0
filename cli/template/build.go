package template

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/cli/upload"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type buildOptions struct {
	*command.Env
	req           sandbox.BuildTemplateRequest
	file, steps   string
	noCache       bool
	start         string
	readyPort     int64
	readyPath     string
	readyCommand  string
	readyTimeout  time.Duration
	env, secrets  []string
	cpu           command.CPU
	memory, bytes command.Bytes
	capabilities  string
	detach        bool
}

func newBuild(e *command.Env) *cobra.Command {
	o := &buildOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "build NAME [FOLDER]",
		Short: "Build a new version of a template",
		Long: `Builds a new version of a template, of the Dockerfile of a folder (default: the current one), of a list of steps, or of an
image. Only files that changed are uploaded, and only steps that changed are run. The version gets the tag latest, or
those of --tag; if the build fails, the name selects the same version as before.

The server runs the build: Ctrl-C only stops watching it. Exit code 3: the build failed.`,
		Example: "  r template build shop\n  r template build shop ./images/shop --file Dockerfile.dev --tag beta\n" +
			"  r template build tools --steps steps.yml\n  r template build web --start 'python3 -m http.server 8000' --ready-port 8000",
		Args: command.Args(1, 2, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "path of the Dockerfile in the folder; default Dockerfile")
	f.StringVar(&o.steps, "steps", "", "YAML file with the steps of the build, instead of a Dockerfile")
	f.StringVar(&o.req.Image, "image", "", "image to take as it is, instead of a Dockerfile")
	f.BoolVar(&o.noCache, "no-cache", false, "build without the cache")
	f.StringVar(&o.req.Title, "title", "", "description for people")
	f.StringArrayVarP(&o.req.Tags, "tag", "t", nil, "tag of the version when it is built; default latest")
	f.StringArrayVar(&o.req.Aliases, "alias", nil, "another name of the template")
	f.StringVar(&o.start, "start", "", "command that runs in every sandbox from its start on, by /bin/sh")
	f.Int64Var(&o.readyPort, "ready-port", 0, "port on which the start command listens when it is ready")
	f.StringVar(&o.readyPath, "ready-path", "", "with --ready-port: path that answers HTTP when it is ready")
	f.StringVar(&o.readyCommand, "ready-command", "", "command that exits with 0 when the start command is ready, by /bin/sh")
	f.DurationVar(&o.readyTimeout, "ready-timeout", 0, "longest time until it is ready; default a minute")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment variable of its sandboxes, KEY=VALUE, or KEY for its value here")
	f.StringArrayVar(&o.secrets, "secret", nil, "build secret, KEY for its value here, or KEY=VALUE; steps read it, the image does not have it")
	f.StringVarP(&o.req.User, "user", "u", "", "user of the processes; default the image's")
	f.StringVarP(&o.req.Workdir, "workdir", "w", "", "working directory; default the image's")
	f.StringVar(&o.capabilities, "capabilities", "", "of the programs of root: none, or default, which official images expect")
	f.Var(&o.cpu, "cpu", "CPUs of its sandboxes")
	f.Var(&o.memory, "memory", "memory of its sandboxes")
	f.Var(&o.bytes, "disk", "disk space of its sandboxes")
	f.BoolVar(&o.detach, "detach", false, "return without waiting for the end of the build")
	return cmd
}

// request completes the request from the flags. It reports whether the build
// needs the files of the folder.
func (o *buildOptions) request() (files bool, err error) {
	req := &o.req
	req.Project, req.NoCache = o.Project(), &o.noCache
	req.CPUMillis, req.MemoryBytes, req.DiskBytes = o.cpu.Ptr(), o.memory.Ptr(), o.bytes.Ptr()
	if req.Env, err = command.ParseEnv(o.env); err != nil {
		return false, err
	}
	if req.Secrets, err = command.ParseSecrets(o.secrets); err != nil {
		return false, err
	}
	if req.Capabilities = sandbox.CapabilitySet(o.capabilities); req.Capabilities != "" && !req.Capabilities.Valid() {
		return false, exit.Usagef("--capabilities %s: there are %s and %s", o.capabilities, sandbox.CapabilitySetNone, sandbox.CapabilitySetDefault)
	}
	req.Start = byShell(o.start)
	if o.readyPort != 0 || o.readyPath != "" || o.readyCommand != "" || o.readyTimeout != 0 {
		req.Ready = &sandbox.TemplateReady{Path: o.readyPath, Command: byShell(o.readyCommand)}
		if o.readyPort != 0 {
			req.Ready.Port = &o.readyPort
		}
		if o.readyTimeout != 0 {
			req.Ready.Timeout = &o.readyTimeout
		}
	}
	switch {
	case o.steps != "" && (o.file != "" || req.Image != ""), o.file != "" && req.Image != "":
		return false, exit.Usagef("only one of --file, --steps and --image can be given")
	case req.Image != "":
		return false, nil
	case o.steps != "":
		req.Steps, err = readSteps(o.steps)
		return slices.ContainsFunc(req.Steps, func(s sandbox.BuildStep) bool { return s.Kind == sandbox.BuildStepKindCopy }), err
	}
	if req.Dockerfile = o.file; o.file == "" {
		req.Dockerfile = "Dockerfile"
	}
	return true, nil
}

func byShell(line string) []string {
	if line == "" {
		return nil
	}
	return []string{"/bin/sh", "-c", line}
}

func (o *buildOptions) run(ctx context.Context, args []string) error {
	files, err := o.request()
	if err != nil {
		return err
	}
	dir := "."
	if len(args) > 1 {
		dir = args[1]
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	v := rollout.NewLines(o.Console, time.Now)
	if o.Quiet && !o.JSON {
		v = rollout.New(o.Console, time.Now)
	}
	if files {
		tree, err := upload.Walk(ctx, dir)
		if err != nil {
			return err
		}
		defer tree.Close()
		if o.req.Source, err = upload.Send(ctx, app.NewDeploysClient(c), tree, v); err != nil {
			return err
		}
	}
	o.req.Name = args[0]
	templates := sandbox.NewTemplatesClient(c)
	resp, err := templates.Build(ctx, &o.req)
	if err != nil {
		return err
	}
	b, err := entity.Decode[app.Build](&resp.Build)
	if err != nil {
		return err
	}
	version, err := entity.Decode[sandbox.TemplateVersion](&resp.Version)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s:%d", o.req.Name, version.Spec.Number)
	watch := "on the server\n  watch it: r template logs -f " + name + "\n"
	if o.detach {
		if o.JSON {
			return o.PrintJSONLine(map[string]any{"event": "detached", "version": version})
		}
		o.Printf("%s\n", name)
		o.Notef("the build continues %s", watch)
		return nil
	}
	err = rollout.BuildLog(ctx, o.Env, v, b.GetID(), true)
	var after *sandbox.TemplateResponse
	if err == nil {
		after, err = templates.Wait(ctx, &sandbox.TemplateRequest{Project: o.Project(), Template: name})
	}
	if ctx.Err() != nil {
		o.Notef("\nthe build of %s continues %s", name, watch)
		return exit.With(exit.Interrupted, nil)
	}
	if err != nil {
		return errs.Wrap(err, "follow the build of %s", name)
	}
	return o.report(after, name)
}

// report prints how a build ended.
func (o *buildOptions) report(after *sandbox.TemplateResponse, name string) error {
	t, err := entity.Decode[sandbox.Template](&after.Template)
	if err != nil {
		return err
	}
	v, err := entity.Decode[sandbox.TemplateVersion](after.Selected)
	if err != nil {
		return err
	}
	if v.Status.Phase != sandbox.TemplatePhaseReady {
		hint := "`r template logs " + name + "` prints the log again"
		if b := buildOf(after, v); b != nil && b.Status.Hint != "" {
			hint = b.Status.Hint + "\n" + hint
		}
		return exit.With(exit.BuildFailed, errs.New(errs.FailedPrecondition, "%s was not built: %s", name, v.Status.Message).WithHint("%s", hint))
	}
	if o.JSON {
		return o.PrintJSONLine(map[string]any{"event": "built", "template": t, "version": v})
	}
	var tags []string
	for tag, n := range t.Spec.Tags {
		if n == v.Spec.Number {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	o.Printf("%s %s is ready, %s, tags: %s\n", o.Paint(console.Green, "✓"), name, schema.CellBytes(v.Status.Bytes), strings.Join(tags, ", "))
	return nil
}

// buildOf returns the build of a version, nil if it is not known.
func buildOf(resp *sandbox.TemplateResponse, v *sandbox.TemplateVersion) *app.Build {
	for i := range resp.Builds {
		if b, err := entity.Decode[app.Build](&resp.Builds[i]); err == nil && b.Spec.TemplateVersion == v.GetID() {
			return b
		}
	}
	return nil
}
