// Package ingress is the client of the admin interface of ingress: HTTP with
// JSON on a unix socket that only root may open. The deployment controller
// uses it to know when a switch of versions is complete, that of sandboxes to know
// which are in use.
//
//	GET /status                         Status
//	GET /inflight?version=ID            Inflight; without version: of all
//	GET /activity?sandbox=ID            Activity
//	GET /load?seen=N&wait=1s            Load, after wait or when a service with no sandbox gets a request
//	GET /synced?revision=N&wait=10s     Status, when the table has revision N; 504 if not within wait
//	GET /metrics                        metrics in the text format of Prometheus
//	POST /serve                         Status; an ingress that stands by for its predecessor serves
//	POST /handover                      gives the listening sockets to a successor (servers/ingress)
//
// While a predecessor ends its requests, the answers include them.
//
// Errors are JSON objects with "class" (of package errs) and "message".
package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Route is one line of the route table.
type Route struct {
	Host    string    `json:"host"`
	Path    string    `json:"path"`
	App     schema.ID `json:"app"`
	AppName string    `json:"app_name,omitempty"`
	Service string    `json:"service"`
	Version schema.ID `json:"version,omitempty"` // the active version
	Ready   int       `json:"ready"`             // number of sandboxes that take requests
}

// Status is the state of an ingress.
type Status struct {
	PID          int          `json:"pid"`
	Addresses    []string     `json:"addresses"`
	TLSAddresses []string     `json:"tls_addresses,omitempty"` // for HTTPS
	Table        schema.Token `json:"table"`                   // the table includes every change up to this position
	Synced       bool         `json:"synced"`                  // this process has listed the store; otherwise it serves the table of its predecessor
	Error        string       `json:"error,omitempty"`         // why the ingress does not follow the store now
	Routes       []Route      `json:"routes"`
	InFlight     int64        `json:"in_flight"`
	Held         int64        `json:"held"`               // requests that wait for a sandbox
	Standby      bool         `json:"standby,omitempty"`  // it has the sockets of its predecessor, which serves
	Draining     bool         `json:"draining,omitempty"` // a successor serves; requests under way go on
}

// Inflight counts the requests that sandboxes work on, tunnels included.
type Inflight struct {
	Version   schema.ID           `json:"version,omitempty"`
	Total     int64               `json:"total"`
	Sandboxes map[schema.ID]int64 `json:"sandboxes"` // by sandbox; includes those with 0, and those that left the table
	Table     schema.Token        `json:"table"`
}

// Activity says how much a sandbox is used by its previews.
type Activity struct {
	Sandbox  schema.ID     `json:"sandbox"`
	Requests int64         `json:"requests"` // requests and tunnels under way, and those that wait for the sandbox
	Idle     time.Duration `json:"idle"`     // since the last one ended, or the ingress started, in nanoseconds
}

// Load is the requests for services of the versions that serve.
type Load struct {
	PID      int           `json:"pid"`
	Over     time.Duration `json:"over"`  // time over which InFlight is averaged, in nanoseconds
	Wakes    int64         `json:"wakes"` // how often a request began to wait for a service for which none did
	Services []ServiceLoad `json:"services"`
}

// ServiceLoad is the requests for a service of a version. Requests and Missed count from the start of the ingress, or the
// time from which the version serves.
type ServiceLoad struct {
	App      schema.ID `json:"app"`
	Service  string    `json:"service"`
	Version  schema.ID `json:"version"`
	InFlight float64   `json:"in_flight"` // mean number of requests that sandboxes worked on, tunnels and streams included
	Requests int64     `json:"requests"`  // that were sent to a sandbox
	Held     int64     `json:"held"`      // that wait for a sandbox now
	Missed   int64     `json:"missed"`    // that drew the version and were sent to another, since it had no sandbox
}

// Error is the body of a failed call.
type Error struct {
	Class   errs.Class `json:"class"`
	Message string     `json:"message"`
}

// Client asks the ingress at Socket. The zero value with a Socket is ready; it
// is safe for concurrent use.
type Client struct {
	Socket string
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 20

// Status returns the state of the ingress.
func (c Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "/status", nil)
}

// Inflight counts the requests on the sandboxes of a version. After Synced has
// returned for the revision that switched away from it, the count only falls.
func (c Client) Inflight(ctx context.Context, version schema.ID) (Inflight, error) {
	return get[Inflight](ctx, c, "/inflight", url.Values{"version": {string(version)}})
}

// Activity says how much a sandbox is used by its previews.
func (c Client) Activity(ctx context.Context, sandbox schema.ID) (Activity, error) {
	return get[Activity](ctx, c, "/activity", url.Values{"sandbox": {string(sandbox)}})
}

// Load measures the load for the time wait, or until Wakes is not seen.
func (c Client) Load(ctx context.Context, seen int64, wait time.Duration) (Load, error) {
	return get[Load](ctx, c, "/load", url.Values{"seen": {strconv.FormatInt(seen, 10)}, "wait": {wait.String()}})
}

// Synced waits until the table includes every change up to revision, or ctx
// ends.
func (c Client) Synced(ctx context.Context, revision schema.Revision) error {
	q := url.Values{"revision": {strconv.FormatInt(int64(revision), 10)}, "wait": {"10s"}}
	for {
		_, err := get[Status](ctx, c, "/synced", q)
		if !errs.Is(err, errs.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// Serve has an ingress serve that stands by for its predecessor.
func (c Client) Serve(ctx context.Context) error {
	body, err := c.ask(ctx, http.MethodPost, "/serve", nil)
	if err != nil {
		return err
	}
	return body.Close()
}

// Metrics returns the metrics in the text format of Prometheus. The caller closes
// them.
func (c Client) Metrics(ctx context.Context) (io.ReadCloser, error) {
	body, err := c.ask(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	return body, nil
}

// Down reports whether a call failed because no process listens on the socket:
// no ingress runs, so no request is under way.
func Down(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

func get[T any](ctx context.Context, c Client, path string, q url.Values) (T, error) {
	var out T
	body, err := c.ask(ctx, http.MethodGet, path, q)
	if err != nil {
		return out, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return out, errs.New(errs.Unavailable, "answer of ingress: %w", err)
	}
	return out, nil
}

// ask returns the body of an answer.
func (c Client) ask(ctx context.Context, method, path string, q url.Values) (*answer, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", c.Socket)
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://ingress"+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		tr.CloseIdleConnections()
		if ctx.Err() != nil {
			return nil, errs.Wrap(ctx.Err(), "ask ingress")
		}
		return nil, errs.New(errs.Unavailable, "ask ingress: %w", err).WithHint("is `runtime ingress` running?")
	}
	a := &answer{ReadCloser: http.MaxBytesReader(nil, resp.Body, maxAnswer), transport: tr}
	if resp.StatusCode == http.StatusOK {
		return a, nil
	}
	defer a.Close()
	var e Error
	if err := json.NewDecoder(a).Decode(&e); err != nil || e.Class == "" {
		return nil, errs.New(errs.Unavailable, "ingress answered %s", resp.Status)
	}
	return nil, errs.New(e.Class, "%s", e.Message)
}

// answer is the body of an answer with the connection that it needs.
type answer struct {
	io.ReadCloser
	transport *http.Transport
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.transport.CloseIdleConnections()
	return err
}
