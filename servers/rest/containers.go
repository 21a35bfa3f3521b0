package rest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// Container is any sandbox of the project: a session, one of an app or of an
// execution, or one that waits in a pool.
type Container struct {
	ID          string            `json:"id" doc:"Id; a session has the same." example:"sb-4k2j7q"`
	Name        string            `json:"name,omitempty" doc:"Name."`
	Purpose     string            `json:"purpose" enum:"session,app,execution,pool" doc:"What it is for; pool: it waits to be claimed."`
	State       string            `json:"state" enum:"creating,running,pausing,paused,ending,ended,failed" doc:"State."`
	Ready       bool              `json:"ready" doc:"Its probe passes."`
	App         string            `json:"app,omitempty" doc:"Id of its app."`
	Service     string            `json:"service,omitempty" doc:"Service of the app."`
	Execution   string            `json:"execution,omitempty" doc:"Id of its execution."`
	Image       string            `json:"image,omitempty" doc:"Image."`
	Address     string            `json:"address,omitempty" doc:"Its address on its node, while it has one."`
	Labels      map[string]string `json:"labels,omitempty" doc:"Labels."`
	Reason      string            `json:"reason,omitempty" doc:"Reason of its end."`
	Message     string            `json:"message,omitempty" doc:"Problem and advice."`
	ExitCode    *int64            `json:"exit_code,omitempty" doc:"Exit code of its main process."`
	CPUMillis   int64             `json:"cpu_millis,omitempty" doc:"CPU, in thousandths."`
	MemoryBytes int64             `json:"memory_bytes,omitempty" doc:"Memory."`
	Pauses      int64             `json:"pauses,omitempty" doc:"How often it was paused."`
	CreatedAt   time.Time         `json:"created_at" doc:"Time of its creation."`
	StartedAt   *time.Time        `json:"started_at,omitempty" doc:"Time of its start."`
	EndedAt     *time.Time        `json:"ended_at,omitempty" doc:"Time of its end."`
}

func containerOf(sb *sandbox.Sandbox) Container {
	t, st := &sb.Spec.Template, &sb.Status
	return Container{
		ID: string(sb.ID), Name: sb.Name, Purpose: session.PurposeOf(sb), State: session.State(st.Phase), Ready: st.Ready, App: string(sb.Spec.App),
		Service: sb.Spec.Service, Execution: string(sb.Spec.Execution), Image: t.Image, Address: st.Address, Labels: session.VisibleLabels(sb.Labels),
		Reason: string(st.Reason), Message: st.Message, ExitCode: st.ExitCode, CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes,
		Pauses: st.Pauses, CreatedAt: sb.CreatedAt, StartedAt: st.StartedAt, EndedAt: st.EndedAt,
	}
}

// ContainerInput names a container.
type ContainerInput struct {
	ID string `path:"id" maxLength:"63" pattern:"^sb-[a-z0-9]+$" doc:"Id of the container." example:"sb-4k2j7q"`
}

func registerContainers(a huma.API) {
	const tag = "containers"
	register(a, op(http.MethodGet, "/containers", "list-containers", tag, "List every sandbox of the project, those of apps, executions and pools included"), listContainers)
	register(a, op(http.MethodGet, "/containers/{id}", "get-container", tag, "Get a container"), getContainer)
	register(a, op(http.MethodGet, "/containers/{id}/logs", "get-container-logs", tag, "Get what the main process of a container printed"), containerLogs)
	register(a, op(http.MethodPut, "/sessions/{id}/idle", "set-session-idle", "sessions", "Change the idle time of a session"), setIdle)
}

type listContainersInput struct {
	Purpose string   `query:"purpose" enum:"session,app,execution,pool" doc:"Only containers for this."`
	State   string   `query:"state" enum:"creating,running,pausing,paused,ending,ended,failed" doc:"Only containers in this state."`
	Name    string   `query:"name" maxLength:"63" doc:"Only the container with this name."`
	Label   []string `query:"label,explode" maxItems:"16" doc:"Only containers with this label, KEY=VALUE; all of several."`
	Limit   int      `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Most containers of a page. A page may have fewer although others follow."`
	Cursor  string   `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before."`
}

// ContainerPage is a page of a list.
type ContainerPage struct {
	Containers []Container `json:"containers" doc:"Containers, in the order of their ids."`
	NextCursor string      `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listContainers(ctx context.Context, in *listContainersInput) (*body[ContainerPage], error) {
	labels, err := selectedLabels(in.Label)
	if err != nil {
		return nil, err
	}
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{
		Kind: sandbox.KindSandbox, Name: in.Name, Labels: labels, Limit: in.Limit, Cursor: in.Cursor,
	})
	if err != nil {
		return nil, err
	}
	out := ContainerPage{Containers: []Container{}, NextCursor: page.Cursor}
	for i := range page.Records {
		sb, err := entity.Decode[sandbox.Sandbox](&page.Records[i])
		if err != nil {
			return nil, err
		}
		c := containerOf(sb)
		if (in.State == "" || c.State == in.State) && (in.Purpose == "" || c.Purpose == in.Purpose) {
			out.Containers = append(out.Containers, c)
		}
	}
	return &body[ContainerPage]{out}, nil
}

// selectedLabels returns the labels that a list asks for, each KEY=VALUE.
func selectedLabels(list []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range list {
		k, v, ok := strings.Cut(l, "=")
		if !ok {
			return nil, errs.New(errs.InvalidArgument, "label %q is not KEY=VALUE", l)
		}
		labels[k] = v
	}
	return labels, nil
}

func getContainer(ctx context.Context, in *ContainerInput) (*body[Container], error) {
	sb, err := findSandbox(ctx, id.Sandbox(in.ID))
	if err != nil {
		return nil, err
	}
	return &body[Container]{containerOf(sb)}, nil
}

type logsInput struct {
	ContainerInput
	After int64 `query:"after" minimum:"0" doc:"Only lines after this position, the next of an answer before."`
	Tail  int64 `query:"tail" minimum:"0" maximum:"10000" doc:"Only so many last lines; 0: all."`
	Limit int   `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"Most lines of the answer."`
}

// LogPage is a part of a log.
type LogPage struct {
	Lines []LogLine `json:"lines" doc:"Lines, the oldest first."`
	Next  int64     `json:"next" doc:"Position after the last line: after of the next request."`
	More  bool      `json:"more" doc:"There are more lines already."`
}

// LogLine is a line that a main process printed.
type LogLine struct {
	At          time.Time `json:"at" doc:"Time of the line."`
	Stream      string    `json:"stream" enum:"stdout,stderr" doc:"Where it was printed."`
	Text        string    `json:"text" doc:"The line. Bytes that are not UTF-8 are replaced."`
	MissedBytes int64     `json:"missed_bytes,omitempty" doc:"So much of the log right before the line is gone: a log keeps its end."`
}

func containerLogs(ctx context.Context, in *logsInput) (*body[LogPage], error) {
	req := &sandbox.LogsRequest{Sandbox: id.Sandbox(in.ID), Offset: opt.Of(in.After), Tail: opt.Of(in.Tail)}
	st, err := sandboxes(ctx).Logs(ctx, req)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	out := LogPage{Lines: []LogLine{}, Next: in.After}
	for {
		b, err := st.Recv()
		if err == io.EOF {
			return &body[LogPage]{out}, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Lines {
			if len(out.Lines) == in.Limit {
				out.More = true
				return &body[LogPage]{out}, nil
			}
			out.add(&b.Lines[i])
		}
	}
}

func (p *LogPage) add(l *sandbox.LogLine) {
	line := LogLine{At: l.At, Stream: "stdout", Text: strings.ToValidUTF8(l.Text, "\uFFFD"), MissedBytes: opt.Value(l.Missed)}
	if opt.Value(l.Stderr) {
		line.Stream = "stderr"
	}
	p.Lines = append(p.Lines, line)
	if l.Offset != nil {
		p.Next = *l.Offset
	}
}

type idleInput struct {
	SessionInput
	Body struct {
		IdleTimeoutSeconds *int64 `json:"idle_timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"Time without use after which on_idle happens; absent: never."`
		OnIdle             string `json:"on_idle,omitempty" enum:"stop,pause" doc:"What happens then; absent: as before."`
	}
}

func setIdle(ctx context.Context, in *idleInput) (*body[Session], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return sessionAnswer(sandboxes(ctx).SetIdle(ctx, &sandbox.IdleRequest{
		Sandbox: sid, IdleTimeout: seconds(in.Body.IdleTimeoutSeconds), OnIdle: sandbox.IdleAction(in.Body.OnIdle),
	}))
}
