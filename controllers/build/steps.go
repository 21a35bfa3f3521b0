package build

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/stack"
)

// outcome is the result of a successful build.
type outcome struct {
	network  *app.Network
	addons   []app.AddonRequest
	image    string
	services []app.Service
	tasks    []app.Task
	routes   []app.SourceRoute
	env      map[string]string
	plan     *stack.Plan
}

// build runs the steps: source, plan, base images, image.
func (r *Reconciler) build(ctx context.Context, b *app.Build) (*outcome, error) {
	log, err := r.Logs.Start(string(b.ID))
	if errs.Is(err, errs.Conflict) {
		return nil, errElsewhere
	}
	if err != nil {
		return nil, because(app.FailureReasonInternal, err)
	}
	defer log.Finish()
	tmp, err := os.MkdirTemp(r.TempDir, "source-"+string(b.ID)+"-")
	if err != nil {
		return nil, because(app.FailureReasonInternal, errs.New(errs.Unavailable, "directory for the source: %w", err))
	}
	defer os.RemoveAll(tmp)
	dir := filepath.Join(tmp, "source")
	if b.Spec.Source == "" {
		err = os.Mkdir(dir, 0o700)
	} else {
		err = r.Sources.Materialize(ctx, b.Spec.Source, dir)
	}
	if err != nil {
		if errs.Is(err, errs.NotFound) {
			err = errs.New(errs.NotFound, "%w", err).WithHint("%s again: it uploads what is missing", command(b))
		}
		return nil, because(app.FailureReasonSource, errs.Wrap(err, "read the uploaded source"))
	}
	if b.Spec.TemplateVersion != "" {
		return r.template(ctx, b, dir, log)
	}
	cfg, err := stack.Load(os.DirFS(dir), b.Spec.Folder)
	if err != nil {
		return nil, because(app.FailureReasonSource, err)
	}
	if cfg, err = stack.Choose(cfg, b.Spec.Stack); err != nil {
		return nil, because(app.FailureReasonPlan, err)
	}
	plan, err := stack.Detect(os.DirFS(dir), cfg)
	if err != nil {
		return nil, because(app.FailureReasonPlan, err)
	}
	r.show(ctx, b, plan, log)
	steps := &stepLog{Writer: log}
	bases, err := r.bases(ctx, b.Project, plan, steps)
	if err != nil {
		return nil, because(app.FailureReasonImage, offer(plan, err))
	}
	secrets, err := r.appSecrets(ctx, b.Spec.App, plan.Secrets, log)
	if err != nil {
		return nil, because(app.FailureReasonBuild, err)
	}
	req := buildkit.Request{
		ContextDir: dir, Dockerfile: plan.Dockerfile, ImageName: images.Name(b.Spec.App), Bases: bases,
		CacheScope: string(b.Project), ContextKey: string(b.Spec.App), Args: cfg.Build.Args, Secrets: secrets, Target: cfg.Build.Target, NoCache: b.Spec.NoCache,
	}
	res, err := r.image(ctx, req, steps)
	if err != nil {
		return nil, offer(plan, err)
	}
	out := &outcome{image: res.Image, services: services(plan), tasks: tasks(plan), routes: routes(plan), env: plan.Env, network: network(plan), addons: addons(plan), plan: plan}
	if len(out.services) == 0 {
		return nil, because(app.FailureReasonPlan, errs.New(errs.InvalidArgument, "the source has no service to run").
			WithHint("say what runs in Procfile (web: ...) or in [services.web] of app.toml"))
	}
	return out, nil
}

// image has the builder build an image, and tries again when the builder goes
// away.
func (r *Reconciler) image(ctx context.Context, req buildkit.Request, log *stepLog) (*buildkit.Result, error) {
	for attempt := 1; ; attempt++ {
		res, err := r.Builder.Build(ctx, req, log.follow)
		if err == nil || !errs.Is(err, errs.Unavailable) {
			return res, err
		}
		if attempt == maxAttempts || ctx.Err() != nil {
			return nil, because(app.FailureReasonInternal, err)
		}
		say(log.Writer, "the builder went away (%v); trying again", err)
	}
}

// show records the plan early, for users. The outcome records it again, so a
// failure to write it here does not end the build.
func (r *Reconciler) show(ctx context.Context, b *app.Build, plan *stack.Plan, log *buildlog.Writer) {
	say(log, "plan: %s", plan.Stack)
	for _, reason := range plan.Reasons {
		say(log, "  %s", reason)
	}
	for _, warning := range plan.Warnings {
		say(log, "warning: %s", warning)
	}
	err := r.update(ctx, b.ID, func(b *app.Build) { setPlan(b, plan) })
	if err != nil && !errs.Is(err, errs.NotFound) {
		r.Logger.Warn("record the plan of a build", "build", string(b.ID), "error", err)
	}
}

func setPlan(b *app.Build, plan *stack.Plan) {
	b.Status.Plan, b.Status.PlanSteps, b.Status.Warnings, b.Status.Release = plan.Stack, plan.Reasons, plan.Warnings, plan.Release
	b.Status.Preview = nil
	if p := plan.Preview; p != nil {
		b.Status.Preview = &app.PreviewSettings{Release: p.Release, Services: p.Services, Env: p.Env}
	}
}

// offer adds to the failure of a folder's own Dockerfile how the folder can be built without it.
func offer(plan *stack.Plan, err error) error {
	hint := stack.Offer(plan.Others)
	if hint == "" {
		return err
	}
	return errs.New(errs.ClassOf(err), "%w", err).WithHint("%s", strings.TrimSpace(errs.HintOf(err)+"\n"+hint))
}

// bases makes the base images that the plan begins from, as far as this machine can make them, and finds those that
// builds of the project made. The plan then names their versions, and how they differ from the requested names.
func (r *Reconciler) bases(ctx context.Context, project schema.ID, plan *stack.Plan, log *stepLog) (map[string]buildkit.Base, error) {
	bases := map[string]buildkit.Base{}
	var names []string
	for _, name := range plan.Bases {
		if !images.Built(name) {
			names = append(names, name)
			continue
		}
		store, err := r.ownImage(ctx, project, name)
		if err != nil {
			return nil, err
		}
		_, digest, _ := strings.Cut(name, "@")
		bases[name] = buildkit.Base{Store: store, Digest: digest}
	}
	images, notes, err := r.Bases.Resolve(ctx, names, log.begin)
	if err != nil {
		log.end(buildlog.StepFailed, err.Error())
		return nil, errs.Wrap(err, "base images")
	}
	log.end(buildlog.StepDone, "")
	for _, note := range notes {
		say(log.Writer, "warning: %s", note)
	}
	plan.Warnings = append(plan.Warnings, notes...)
	for _, name := range slices.Sorted(maps.Keys(images)) {
		img := images[name]
		bases[name] = buildkit.Base{Dir: img.Dir, Digest: img.Digest}
		line := fmt.Sprintf("%s is %s %s, made on this machine", name, img.Name, img.Version)
		say(log.Writer, "  %s", line)
		plan.Reasons = append(plan.Reasons, line)
	}
	return bases, nil
}

// stepLog is the log of a build. It numbers the steps that make base images, of
// which one runs at a time, before those of the builder.
type stepLog struct {
	*buildlog.Writer
	begun int             // steps that make base images
	open  *buildlog.Event // the start of the one that runs; nil: none does
}

// begin ends the running step and begins another one.
func (l *stepLog) begin(name string) {
	l.end(buildlog.StepDone, "")
	l.begun++
	l.open = &buildlog.Event{Kind: buildlog.StepStarted, Step: l.begun, Name: name, At: time.Now()}
	l.Add(*l.open)
}

// end ends the running step, if one runs.
func (l *stepLog) end(kind buildlog.EventKind, text string) {
	if l.open == nil {
		return
	}
	e := *l.open
	e.Kind, e.At, e.Took, e.Text = kind, time.Now(), time.Since(e.At), text
	l.Add(e)
	l.open = nil
}

// follow adds an event of the builder.
func (l *stepLog) follow(e buildlog.Event) {
	if e.Step > 0 {
		e.Step += l.begun
	}
	l.Add(e)
}

func say(log *buildlog.Writer, format string, args ...any) {
	log.Add(buildlog.Event{Kind: buildlog.StepLog, At: time.Now(), Text: fmt.Sprintf(format, args...)})
}

// services turns the plan's services into the services of a version, with
// defaults.
func services(plan *stack.Plan) []app.Service {
	var out []app.Service
	for i := range plan.Services {
		in := &plan.Services[i]
		var s app.Service
		s.SetDefaults()
		s.Name, s.Command, s.Port, s.HealthPath, s.Env = in.Name, in.Command, in.Port, in.HealthPath, in.Env
		s.Protocol = app.ServiceProtocol(in.Protocol)
		set(&s.Replicas, in.Replicas)
		set(&s.HealthDeadline, in.HealthDeadline)
		set(&s.CPUMillis, in.CPUMillis)
		set(&s.MemoryBytes, in.MemoryBytes)
		set(&s.PIDs, in.PIDs)
		set(&s.StopTimeout, in.StopTimeout)
		if sc := in.Scale; sc != nil {
			s.Autoscale = &sandbox.Autoscale{}
			s.Autoscale.SetDefaults()
			set(&s.Autoscale.Min, sc.Min)
			set(&s.Autoscale.Max, sc.Max)
			set(&s.Autoscale.Idle, sc.Idle)
			set(&s.Autoscale.Concurrency, in.Concurrency)
			s.Autoscale.CPU, s.Autoscale.Suspend = sc.CPU, sc.Suspend
		}
		if c := in.Live; c != nil {
			s.Live = &app.LiveCheck{}
			s.Live.SetDefaults()
			s.Live.Off, s.Live.Path = c.Off, c.Path
			set(&s.Live.Interval, c.Interval)
			set(&s.Live.Timeout, c.Timeout)
			set(&s.Live.Failures, c.Failures)
		}
		for _, v := range in.Volumes {
			vol := app.Volume{Disk: v.Disk, Path: v.Path, SizeBytes: v.SizeBytes, ReadOnly: v.ReadOnly}
			if t := v.Snapshots; t != nil {
				vol.Snapshots = &app.VolumeSnapshots{Cron: t.Cron, TimeZone: t.TimeZone, Keep: t.Keep, KeepFor: t.KeepFor}
			}
			s.Volumes = append(s.Volumes, vol)
		}
		out = append(out, s)
	}
	return out
}

// network returns the network of the plan.
func network(plan *stack.Plan) *app.Network {
	n := plan.Network
	if n == nil {
		return nil
	}
	return &app.Network{Egress: n.Egress, Allow: n.Allow, Deny: n.Deny, Restricted: n.Restricted, AllowFrom: n.AllowFrom}
}

// addons turns the plan's addons into those that the app asks for.
func addons(plan *stack.Plan) (out []app.AddonRequest) {
	for _, a := range plan.Addons {
		out = append(out, app.AddonRequest{Name: a.Name, Kind: a.Kind, Version: a.Version, Prefix: a.Prefix, SizeBytes: a.SizeBytes, MemoryBytes: a.MemoryBytes})
	}
	return out
}

// routes turns the plan's routes into those of a version.
func routes(plan *stack.Plan) []app.SourceRoute {
	var out []app.SourceRoute
	for _, in := range plan.Routes {
		var r app.SourceRoute
		r.SetDefaults()
		r.Host, r.Path = in.Host, in.Path
		if in.Service != "" {
			r.Service = in.Service
		}
		s := app.RouteSettings{Timeout: in.Timeout, MaxBodyBytes: in.MaxBody, Allow: in.Allow, Rate: in.Rate, Burst: in.Burst,
			Compress: in.Compress, Sticky: in.Sticky, ErrorPages: in.ErrorPages}
		if !reflect.DeepEqual(s, app.RouteSettings{}) {
			r.Settings = &s
		}
		out = append(out, r)
	}
	return out
}

// tasks turns the plan's tasks into those of a version, with the defaults.
func tasks(plan *stack.Plan) []app.Task {
	var out []app.Task
	for _, in := range plan.Tasks {
		var t app.Task
		t.SetDefaults()
		t.Name, t.Command, t.Schedule, t.TimeZone, t.Env = in.Name, in.Command, in.Schedule, in.TimeZone, in.Env
		if in.Overlap != "" {
			t.Overlap = app.TaskOverlap(in.Overlap)
		}
		set(&t.CatchUp, in.CatchUp)
		set(&t.Timeout, in.Timeout)
		set(&t.CPUMillis, in.CPUMillis)
		set(&t.MemoryBytes, in.MemoryBytes)
		set(&t.PIDs, in.PIDs)
		out = append(out, t)
	}
	return out
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
