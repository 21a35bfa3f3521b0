package rest

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/opt"
)

// Deployment is a rollout of a version of an app.
type Deployment struct {
	ID          string             `json:"id" doc:"Id." example:"dep-4k2j7q"`
	App         string             `json:"app" doc:"Name of the app."`
	Kind        string             `json:"kind" enum:"deploy,rollback,config,restart,promote" doc:"Kind."`
	Phase       string             `json:"phase" doc:"Phase; succeeded, failed and canceled are final."`
	Version     int64              `json:"version,omitempty" doc:"Number of the version that it rolls out; absent: there is none yet."`
	Preview     string             `json:"preview,omitempty" doc:"Name of the preview that it makes or replaces; absent: it changes what the app's hosts get."`
	Message     string             `json:"message,omitempty" doc:"Reason that the user gave."`
	RequestedBy string             `json:"requested_by,omitempty" doc:"Who asked for it."`
	Commit      string             `json:"commit,omitempty" doc:"Commit of the source."`
	Branch      string             `json:"branch,omitempty" doc:"Branch of the source."`
	URL         string             `json:"url,omitempty" doc:"URL of the app, or of the preview."`
	Steps       []DeploymentStep   `json:"steps" doc:"Its steps, in order."`
	Failure     *DeploymentFailure `json:"failure,omitempty" doc:"Its failure."`
	CreatedAt   time.Time          `json:"created_at" doc:"Time at which it was accepted."`
	EndedAt     *time.Time         `json:"ended_at,omitempty" doc:"Time of its end; absent: it is under way."`
}

// DeploymentStep is a step of a deployment.
type DeploymentStep struct {
	Name      string     `json:"name" doc:"Name." example:"build"`
	State     string     `json:"state" enum:"pending,running,done,failed,skipped" doc:"State."`
	Message   string     `json:"message,omitempty" doc:"Progress or failure."`
	StartedAt *time.Time `json:"started_at,omitempty" doc:"Time of its begin."`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"Time of its end."`
}

// DeploymentFailure says why a deployment failed.
type DeploymentFailure struct {
	Reason   string   `json:"reason" doc:"Class." example:"crash"`
	Message  string   `json:"message" doc:"Description."`
	Hint     string   `json:"hint,omitempty" doc:"Advice."`
	Service  string   `json:"service,omitempty" doc:"The service that failed."`
	ExitCode *int64   `json:"exit_code,omitempty" doc:"Exit code of its process."`
	LogTail  []string `json:"log_tail,omitempty" doc:"Last lines of the build or the process."`
}

// DeploymentList is deployments of the project.
type DeploymentList struct {
	Deployments []Deployment `json:"deployments" doc:"Deployments, newest first."`
}

// BuildStepEvent is a line of a build's log.
type BuildStepEvent struct {
	Kind   string    `json:"kind" doc:"started, progress, log, cached, done, failed, canceled or warning."`
	Step   int64     `json:"step,omitempty" doc:"Step of the build, from 1; absent for what belongs to no step."`
	Name   string    `json:"name,omitempty" doc:"Name of the step."`
	Text   string    `json:"text,omitempty" doc:"A line of output, what is in progress, or why it failed."`
	At     time.Time `json:"at" doc:"Time."`
	Millis int64     `json:"millis,omitempty" doc:"Duration of the step, at its end."`
}

// AppLogLine is a line that a process of an app printed.
type AppLogLine struct {
	LogLine
	Container string `json:"container,omitempty" doc:"Id of its sandbox."`
	Service   string `json:"service,omitempty" doc:"Service of the app."`
	Version   int64  `json:"version,omitempty" doc:"Number of the app's version."`
	Level     string `json:"level,omitempty" doc:"Level that the line says: trace, debug, info, warn, error, fatal."`
}

const (
	eventBuild = "build" // BuildStepEvent
	eventLine  = "line"  // AppLogLine
)

var (
	deploymentEvents = map[string]any{eventStatus: Deployment{}, eventBuild: BuildStepEvent{}, eventLine: AppLogLine{}, eventEnd: Deployment{}, eventError: Problem{}}
	logEvents        = map[string]any{eventLine: AppLogLine{}, eventError: Problem{}}
)

func registerDeployments(a huma.API) {
	const tag = "apps"
	register(a, op(http.MethodGet, "/deployments", "list-deployments", tag, "List the deployments of the project"), listDeployments)
	register(a, op(http.MethodGet, "/deployments/{id}", "get-deployment", tag, "Get a deployment"), getDeployment)
	register(a, op(http.MethodGet, "/deployments/{id}/stream", "stream-deployment", tag,
		"Follow a deployment, its build and the output of what it starts, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, deploymentEvents)})), streamDeployment)
	register(a, op(http.MethodGet, "/apps/{app}/logs/stream", "stream-app-logs", tag,
		"Follow the output of an app's processes, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, logEvents)})), streamAppLogs)
}

func (p *appParts) deployment(d *app.Deployment) Deployment {
	st := &d.Status
	out := Deployment{
		ID: string(d.ID), App: p.names[d.Spec.App], Kind: string(d.Spec.Kind), Phase: string(st.Phase), Version: p.numbers[st.Version], Message: d.Spec.Message,
		RequestedBy: d.Spec.RequestedBy, URL: st.URL, Steps: []DeploymentStep{}, CreatedAt: d.CreatedAt, EndedAt: st.EndedAt,
	}
	if pr := d.Spec.Preview; pr != nil {
		out.Preview = pr.Name
	}
	if g := d.Spec.Git; g != nil {
		out.Commit, out.Branch = g.Commit, g.Branch
	}
	for i := range st.Steps {
		s := &st.Steps[i]
		out.Steps = append(out.Steps, DeploymentStep{s.Name, string(s.State), s.Message, s.StartedAt, s.EndedAt})
	}
	if f := st.Failure; f != nil {
		out.Failure = &DeploymentFailure{string(f.Reason), f.Message, f.Hint, f.Service, f.ExitCode, f.LogTail}
	}
	return out
}

type listDeploymentsInput struct {
	App   string `query:"app" maxLength:"40" doc:"Only deployments of this app; its name."`
	Phase string `query:"phase" maxLength:"20" doc:"Only deployments in this phase." example:"failed"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Most deployments of the answer."`
}

func listDeployments(ctx context.Context, in *listDeploymentsInput) (*body[DeploymentList], error) {
	of := func(string) entity.Query { return entity.Query{} }
	var apps []*app.App
	if in.App != "" {
		a, err := findApp(ctx, in.App)
		if err != nil {
			return nil, err
		}
		apps = []*app.App{a}
		of = func(attr string) entity.Query { return ofApp(attr, a.GetID()) }
	} else {
		var err error
		if apps, err = all[app.App](ctx, entity.Query{}); err != nil {
			return nil, err
		}
	}
	p, err := readApps(ctx, of, apps)
	if err != nil {
		return nil, err
	}
	out := DeploymentList{Deployments: []Deployment{}}
	for _, d := range p.deployments {
		if in.Phase == "" || in.Phase == string(d.Status.Phase) {
			out.Deployments = append(out.Deployments, p.deployment(d))
		}
	}
	slices.SortFunc(out.Deployments, func(a, b Deployment) int { return b.CreatedAt.Compare(a.CreatedAt) })
	out.Deployments = out.Deployments[:min(len(out.Deployments), in.Limit)]
	return &body[DeploymentList]{out}, nil
}

// DeploymentInput names a deployment.
type DeploymentInput struct {
	ID string `path:"id" maxLength:"63" pattern:"^dep-[a-z0-9]+$" doc:"Id of the deployment." example:"dep-4k2j7q"`
}

// describeDeployment returns a deployment for an answer.
func describeDeployment(ctx context.Context, d *app.Deployment) (Deployment, error) {
	store := remote.New(callerFrom(ctx).Client)
	p := &appParts{numbers: map[id.AppVersion]int64{}, names: map[id.App]string{}}
	a, err := entity.Get[app.App](ctx, store, d.Spec.App)
	if err != nil {
		return Deployment{}, err
	}
	p.names[a.GetID()] = a.Name
	if v := d.Status.Version; v != "" {
		version, err := entity.Get[app.AppVersion](ctx, store, v)
		if err != nil {
			return Deployment{}, err
		}
		p.numbers[v] = version.Spec.Number
	}
	return p.deployment(d), nil
}

func getDeployment(ctx context.Context, in *DeploymentInput) (*body[Deployment], error) {
	d, err := entity.Get[app.Deployment](ctx, remote.New(callerFrom(ctx).Client), id.Deployment(in.ID))
	if err != nil {
		return nil, err
	}
	out, err := describeDeployment(ctx, d)
	return &body[Deployment]{out}, err
}

type deploymentStreamInput struct {
	DeploymentInput
	LastEventID string `header:"Last-Event-ID" maxLength:"20" pattern:"^[0-9]*$" doc:"id of the last event of an earlier stream: the build's log goes on after it. Absent: from the beginning."`
}

func streamDeployment(ctx context.Context, in *deploymentStreamInput) (*huma.StreamResponse, error) {
	cctx, cancel := context.WithCancel(ctx)
	var after *int64
	if n, err := strconv.ParseInt(in.LastEventID, 10, 64); err == nil {
		after = &n
	}
	st, err := app.NewDeploysClient(callerFrom(ctx).Client).Follow(cctx, &app.FollowRequest{Deployment: id.Deployment(in.ID), BuildOffset: after})
	if err != nil {
		cancel()
		return nil, err
	}
	first, err := st.Recv()
	if err != nil {
		cancel()
		st.Close()
		return nil, err
	}
	return &huma.StreamResponse{Body: streamed(func(sctx context.Context, emit func(event)) error {
		defer st.Close()
		defer cancel()
		defer context.AfterFunc(sctx, cancel)()
		var last *Deployment
		for m := first; ; {
			if err := emitDeployment(sctx, m, emit, &last); err != nil {
				return err
			}
			var err error
			if m, err = st.Recv(); err == io.EOF {
				if last != nil {
					emit(event{name: eventEnd, data: *last})
				}
				return nil
			} else if err != nil {
				return err
			}
		}
	})}, nil
}

// emitDeployment emits a message about a deployment, and notes its newest state.
func emitDeployment(ctx context.Context, m *app.DeployEvent, emit func(event), last **Deployment) error {
	switch {
	case m.Deployment != nil:
		d, err := entity.Decode[app.Deployment](m.Deployment)
		if err != nil {
			return err
		}
		x, err := describeDeployment(ctx, d)
		if err != nil {
			return err
		}
		*last = &x
		emit(event{name: eventStatus, data: x})
	case m.Build != nil:
		b := m.Build
		at := ""
		if m.BuildOffset != nil {
			at = strconv.FormatInt(*m.BuildOffset, 10)
		}
		emit(event{at, eventBuild, BuildStepEvent{
			Kind: b.Kind, Step: opt.Value(b.Step), Name: b.Name, Text: b.Text, At: b.At, Millis: opt.Value(b.Took).Milliseconds(),
		}})
	case m.Log != nil:
		emit(event{name: eventLine, data: appLine(m.Log)})
	}
	return nil
}

func appLine(l *sandbox.LogLine) AppLogLine {
	var p LogPage
	p.add(l)
	return AppLogLine{p.Lines[0], string(l.Sandbox), l.Service, opt.Value(l.Version), l.Level}
}

type appLogsInput struct {
	AppInput
	Service string `query:"service" maxLength:"32" doc:"Only this service; absent: all."`
	Tail    int64  `query:"tail" minimum:"0" maximum:"10000" default:"100" doc:"So many last lines of each sandbox first."`
}

func streamAppLogs(ctx context.Context, in *appLogsInput) (*huma.StreamResponse, error) {
	if _, err := findApp(ctx, in.App); err != nil {
		return nil, err
	}
	return followLogs(ctx, &sandbox.LogsRequest{
		Project: callerFrom(ctx).Project(), App: in.App, Service: in.Service, Tail: &in.Tail, Follow: opt.Of(true),
	})
}

// followLogs answers with the lines of logs.
func followLogs(ctx context.Context, req *sandbox.LogsRequest) (*huma.StreamResponse, error) {
	cctx, cancel := context.WithCancel(ctx)
	st, err := sandboxes(ctx).Logs(cctx, req)
	if err != nil {
		cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: streamed(func(sctx context.Context, emit func(event)) error {
		defer st.Close()
		defer cancel()
		defer context.AfterFunc(sctx, cancel)()
		for {
			b, err := st.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			for i := range b.Lines {
				emit(event{name: eventLine, data: appLine(&b.Lines[i])})
			}
		}
	})}, nil
}
