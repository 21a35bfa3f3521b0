package miren

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"miren.dev/runtime/sdk/go/rest"
)

// Sandbox is a session of mode persistent. Its methods other than Run and those
// of files change Session, so they are not for concurrent use.
type Sandbox struct {
	// Session is what the server last said of it.
	Session *rest.Session

	client *Client
}

// ID returns the id of the sandbox.
func (s *Sandbox) ID() string { return s.Session.ID }

// Refresh asks the server for its state.
func (s *Sandbox) Refresh(ctx context.Context) error {
	now, err := s.client.Get(ctx, s.ID())
	if err != nil {
		return err
	}
	s.Session = now.Session
	return nil
}

// Run runs a command and returns its output.
func (s *Sandbox) Run(ctx context.Context, command ...string) (*rest.CommandResult, error) {
	return s.RunCommand(ctx, rest.Command{Command: command})
}

// RunCommand runs a command and returns its output. It is not repeated when the
// connection fails: it may have run.
func (s *Sandbox) RunCommand(ctx context.Context, body rest.Command) (*rest.CommandResult, error) {
	limit := int64(300)
	if body.TimeoutSeconds != nil {
		limit = *body.TimeoutSeconds
	}
	resp, err := s.client.REST.RunCommandWithResponse(takes(ctx, limit), s.ID(), body)
	if err != nil {
		return nil, err
	}
	return resp.JSON200, nil
}

// Execute executes code or a command, waits for its end, and returns what it left.
func (s *Sandbox) Execute(ctx context.Context, body rest.Execute, opts ...Option) (*rest.ExecutionResult, error) {
	o := optionsOf(opts)
	return s.client.finish(ctx, func(ctx context.Context, wait *int64) (*rest.Execution, error) {
		resp, err := s.client.REST.ExecuteInSessionWithResponse(ctx, s.ID(), &rest.ExecuteInSessionParams{Wait: wait, IdempotencyKey: &o.key}, body)
		if err != nil {
			return nil, err
		}
		return resp.JSON200, nil
	})
}

// Extend lets it end this long after now, in whole seconds; 0: never.
func (s *Sandbox) Extend(ctx context.Context, ttl time.Duration) error {
	var body rest.ExtendInputBody
	if ttl > 0 {
		body.TTLSeconds = Ptr(int64(ttl / time.Second))
	}
	resp, err := s.client.REST.ExtendSessionWithResponse(ctx, s.ID(), body)
	if err != nil {
		return err
	}
	s.Session = resp.JSON200
	return nil
}

// Pause saves it and ends its processes, which Resume continues.
func (s *Sandbox) Pause(ctx context.Context) error {
	resp, err := s.client.REST.PauseSessionWithResponse(ctx, s.ID())
	if err != nil {
		return err
	}
	s.Session = resp.JSON200
	return nil
}

// Resume continues it.
func (s *Sandbox) Resume(ctx context.Context) error {
	resp, err := s.client.REST.ResumeSessionWithResponse(ctx, s.ID())
	if err != nil {
		return err
	}
	s.Session = resp.JSON200
	return nil
}

// End deletes it; nothing happens if it is gone.
func (s *Sandbox) End(ctx context.Context) error {
	_, err := s.client.REST.DeleteSessionWithResponse(ctx, s.ID())
	if errors.Is(err, NotFound) {
		return nil
	}
	return err
}

// OpenFile returns the content of a file as it comes. A relative path is below
// the working directory, here and below.
func (s *Sandbox) OpenFile(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := s.client.REST.ClientInterface.ReadFile(ctx, s.ID(), &rest.ReadFileParams{Path: path})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// ReadFile returns the content of a file.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	resp, err := s.client.REST.ReadFileWithResponse(ctx, s.ID(), &rest.ReadFileParams{Path: path})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile writes a file, which appears when it is complete.
func (s *Sandbox) WriteFile(ctx context.Context, path string, content []byte) error {
	return s.WriteFileFrom(ctx, rest.WriteFileParams{Path: path}, bytes.NewReader(content))
}

// WriteFileFrom writes a file, which appears when it is complete. Content other
// than of a bytes.Reader, bytes.Buffer or strings.Reader is not sent again if
// the connection fails.
func (s *Sandbox) WriteFileFrom(ctx context.Context, params rest.WriteFileParams, content io.Reader) error {
	_, err := s.client.REST.WriteFileWithBodyWithResponse(takes(ctx, longestTransfer), s.ID(), &params, "application/octet-stream", content)
	return err
}

// ListFiles returns the entries of a directory, by name.
func (s *Sandbox) ListFiles(ctx context.Context, path string) ([]rest.File, error) {
	var files []rest.File
	params := rest.ListFilesParams{Path: &path}
	for {
		resp, err := s.client.REST.ListFilesWithResponse(ctx, s.ID(), &params)
		if err != nil {
			return nil, err
		}
		files = append(files, resp.JSON200.Files...)
		if !resp.JSON200.More || len(files) == 0 {
			return files, nil
		}
		params.After = &files[len(files)-1].Name
	}
}

// RemoveFile removes a file, or a directory with everything in it.
func (s *Sandbox) RemoveFile(ctx context.Context, path string) error {
	_, err := s.client.REST.RemoveFileWithResponse(ctx, s.ID(), &rest.RemoveFileParams{Path: path, Recursive: Ptr(true)})
	return err
}
