package miren

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"net/http"
	"os"
	"strings"
	"time"

	"miren.dev/runtime/sdk/go/rest"
)

// longestWait is the longest time, in seconds, that one request asks the server
// to wait for an end.
const longestWait = 60

// Config describes a connection to a server.
type Config struct {
	// URL is the address of the server's API, such as http://127.0.0.1:7070;
	// default: the environment's MIREN_API_URL.
	URL string
	// APIKey is what `r key create` printed; default: the environment's MIREN_API_KEY.
	APIKey string
	// Timeout is how long an answer may take to begin, beyond the time that the
	// request itself may take; default: 30 s.
	Timeout time.Duration
	// MaxRetries is how often a request is repeated; default: 4; negative: never.
	MaxRetries int
	// HTTP sends the requests; default: http.DefaultClient.
	HTTP *http.Client
}

// Client is a connection to a server, for concurrent use.
type Client struct {
	// REST has every operation. Its methods return errors of type *Error, as
	// those of Client do.
	REST *rest.ClientWithResponses

	timeout time.Duration
	retries int
}

// NewClient returns a client. It does not connect.
func NewClient(c Config) (*Client, error) {
	url := cmp.Or(c.URL, os.Getenv("MIREN_API_URL"))
	key := cmp.Or(c.APIKey, os.Getenv("MIREN_API_KEY"))
	if url == "" || key == "" {
		return nil, errors.New("miren: URL and APIKey are needed: pass them, or set MIREN_API_URL and MIREN_API_KEY")
	}
	url = strings.TrimSuffix(strings.TrimRight(url, "/"), "/api/v1") + "/api/v1"
	s := &sender{
		http: cmp.Or(c.HTTP, http.DefaultClient), key: key, timeout: cmp.Or(c.Timeout, 30*time.Second), retries: max(cmp.Or(c.MaxRetries, 4), 0),
	}
	r, err := rest.NewClientWithResponses(url, rest.WithHTTPClient(s))
	if err != nil {
		return nil, err
	}
	return &Client{REST: r, timeout: s.timeout, retries: s.retries}, nil
}

// Ptr returns a pointer to a value, for optional fields of requests.
func Ptr[T any](v T) *T { return &v }

// Option changes one request.
type Option func(*options)

type options struct {
	key  string
	wait int64 // seconds
}

// WithIdempotencyKey names a request: another one with the key has the same result.
func WithIdempotencyKey(key string) Option { return func(o *options) { o.key = key } }

// WithWait bounds the time until a new sandbox runs, in whole seconds; default: 60 s.
func WithWait(d time.Duration) Option {
	return func(o *options) { o.wait = int64(d / time.Second) }
}

func optionsOf(opts []Option) options {
	o := options{key: rand.Text(), wait: 60}
	for _, f := range opts {
		f(&o)
	}
	return o
}

// Create creates a sandbox and waits until it runs.
func (c *Client) Create(ctx context.Context, body rest.CreateSession, opts ...Option) (*Sandbox, error) {
	o := optionsOf(opts)
	resp, err := c.REST.CreateSessionWithResponse(takes(ctx, o.wait), &rest.CreateSessionParams{Wait: &o.wait, IdempotencyKey: &o.key}, body)
	if err != nil {
		return nil, err
	}
	return &Sandbox{client: c, Session: resp.JSON201}, nil
}

// Get returns a sandbox that exists.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	resp, err := c.REST.GetSessionWithResponse(ctx, id)
	if err != nil {
		return nil, err
	}
	return &Sandbox{client: c, Session: resp.JSON200}, nil
}

// Sandboxes yields the sandboxes of the project, until an error.
func (c *Client) Sandboxes(ctx context.Context, params rest.ListSessionsParams) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		for {
			resp, err := c.REST.ListSessionsWithResponse(ctx, &params)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range resp.JSON200.Sessions {
				if !yield(&Sandbox{client: c, Session: &resp.JSON200.Sessions[i]}, nil) {
					return
				}
			}
			if params.Cursor = resp.JSON200.NextCursor; params.Cursor == nil {
				return
			}
		}
	}
}

// Templates returns the templates that the project can use.
func (c *Client) Templates(ctx context.Context) ([]rest.Template, error) {
	resp, err := c.REST.ListTemplatesWithResponse(ctx)
	if err != nil {
		return nil, err
	}
	return resp.JSON200.Templates, nil
}

// Execute executes code or a command in a sandbox of its own, waits for its end,
// and returns what it left.
func (c *Client) Execute(ctx context.Context, body rest.Submission, opts ...Option) (*rest.ExecutionResult, error) {
	o := optionsOf(opts)
	return c.finish(ctx, func(ctx context.Context, wait *int64) (*rest.Execution, error) {
		resp, err := c.REST.SubmitExecutionWithResponse(ctx, &rest.SubmitExecutionParams{Wait: wait, IdempotencyKey: &o.key}, body)
		if err != nil {
			return nil, err
		}
		return resp.JSON201, nil
	})
}

// finish waits for the end of an execution and returns what it left. A
// submission that is repeated with its key is the same execution, so waiting is
// submitting again.
func (c *Client) finish(ctx context.Context, submit func(context.Context, *int64) (*rest.Execution, error)) (*rest.ExecutionResult, error) {
	for {
		e, err := submit(takes(ctx, longestWait), Ptr[int64](longestWait))
		if err != nil {
			return nil, err
		}
		if e.State != rest.ExecutionStateEnded {
			continue
		}
		resp, err := c.REST.GetExecutionResultWithResponse(ctx, e.ID, nil)
		if err != nil {
			return nil, err
		}
		return resp.JSON200, nil
	}
}
