package rest

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/opt"
)

// statusInterval is how often the stream of an execution looks for another state.
const statusInterval = time.Second

type commandStreamInput struct {
	CommandInput
	ResumeInput
}

type executionStreamInput struct {
	ExecutionInput
	ResumeInput
}

func registerStreams(a huma.API) {
	register(a, op(http.MethodGet, "/sessions/{id}/commands/{command}/stream", "stream-command", "sessions",
		"Follow the output of a command in the background, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, commandEvents)})), streamCommand)
	register(a, op(http.MethodGet, "/executions/{id}/stream", "stream-execution", "executions",
		"Follow the output and the state of an execution, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, executionEvents)})), streamExecution)
}

func streamCommand(ctx context.Context, in *commandStreamInput) (*huma.StreamResponse, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	at := in.position()
	at.attempt = 0
	cctx, cancel := context.WithCancel(ctx)
	st, err := sandboxes(ctx).Attach(cctx, &sandbox.AttachRequest{
		Sandbox: sid, Process: in.Command, StdoutOffset: &at.stdout, StderrOffset: &at.stderr, Keep: opt.Of(true),
	})
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
		out := &outputs{emit: emit, base64: in.Encoding == "base64", at: at}
		for m := first; ; {
			switch {
			case len(m.Stdout) > 0:
				out.add(stdoutStream, opt.Value(m.Offset), m.Stdout)
			case len(m.Stderr) > 0:
				out.add(stderrStream, opt.Value(m.Offset), m.Stderr)
			case m.Note != "":
				emit(event{name: eventNote, data: NoteEvent{m.Note}})
			case m.ExitCode != nil:
				out.flush()
				emit(event{out.at.id(), eventEnd, EndEvent{*m.ExitCode, string(m.Reason)}})
				return nil
			}
			var err error
			if m, err = st.Recv(); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	})}, nil
}

func streamExecution(ctx context.Context, in *executionStreamInput) (*huma.StreamResponse, error) {
	e, err := findExecution(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: streamed(executionSource(e, &in.ResumeInput))}, nil
}

// executionSource produces the events of an execution: its state and each change
// of it, output, and its end.
func executionSource(e *execution.Execution, in *ResumeInput) eventSource {
	return func(ctx context.Context, emit func(event)) error {
		emit(event{name: eventStatus, data: executionOf(e)})
		ctx, cancel := context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			watchStatus(ctx, e, emit)
		}()
		err := followOutput(ctx, e, in, emit)
		cancel()
		<-watched
		return err
	}
}

// watchStatus emits the states of an execution after e, until ctx ends.
func watchStatus(ctx context.Context, e *execution.Execution, emit func(event)) {
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	for last := e; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := findExecution(ctx, string(e.ID))
		if err != nil {
			continue // followOutput returns errors that last
		}
		if s, l := &now.Status, &last.Status; s.Phase != execution.PhaseEnded && (s.Phase != l.Phase || s.Attempt != l.Attempt) {
			emit(event{name: eventStatus, data: executionOf(now)})
		}
		last = now
	}
}

// followOutput emits the output of an execution and its end.
func followOutput(ctx context.Context, e *execution.Execution, in *ResumeInput, emit func(event)) error {
	project := callerFrom(ctx).Project()
	st, err := executions(ctx).Logs(ctx, &execution.LogsRequest{Project: project, Execution: string(e.ID), Follow: opt.Of(true)})
	if err != nil {
		return err
	}
	defer st.Close()
	out := &outputs{emit: emit, base64: in.Encoding == "base64", at: in.position()}
	var read position // of what this call has received
	for {
		m, err := st.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if m.Note != "" {
			emit(event{name: eventNote, data: NoteEvent{m.Note}})
			continue
		}
		if n := opt.Value(m.Attempt); n != read.attempt {
			if read = (position{attempt: n}); out.at.attempt != n {
				out.flush()
				out.at = read
			}
		}
		if len(m.Stdout) > 0 {
			out.add(stdoutStream, read.stdout, m.Stdout)
			read.stdout += int64(len(m.Stdout))
		}
		if len(m.Stderr) > 0 {
			out.add(stderrStream, read.stderr, m.Stderr)
			read.stderr += int64(len(m.Stderr))
		}
	}
	out.flush()
	resp, err := executions(ctx).Wait(ctx, &execution.ExecutionRequest{Project: project, Execution: string(e.ID)})
	if err != nil {
		return err
	}
	ended, err := entity.Decode[execution.Execution](&resp.Execution)
	if err != nil {
		return err
	}
	id := ""
	if out.at.attempt > 0 {
		id = out.at.id()
	}
	emit(event{id, eventEnd, executionOf(ended)})
	return nil
}
