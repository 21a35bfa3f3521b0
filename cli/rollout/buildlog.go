package rollout

import (
	"context"
	"errors"
	"io"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
)

// BuildLog shows the log of a build; with follow until the build has ended,
// across restarts of the server.
func BuildLog(ctx context.Context, e *command.Env, v View, build id.Build, follow bool) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	req := &app.BuildLogsRequest{Build: build, Follow: &follow}
	for {
		err := buildLog(ctx, app.NewBuildsClient(c), req, v)
		if !follow || !errs.Is(err, errs.Unavailable) {
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func buildLog(ctx context.Context, c app.BuildsClient, req *app.BuildLogsRequest, v View) error {
	s, err := c.Logs(ctx, req)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		l, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		req.Offset = &l.Offset
		v.Build(&l.Event)
	}
}
