package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// retryInterval is the pause between attempts to reach the server again, and
// retryTimeout how long the attempts continue without success.
const (
	retryInterval = 500 * time.Millisecond
	retryTimeout  = 2 * time.Minute
)

// Follow shows a deployment until it has ended and returns its last state. It
// resumes after a restart of the server.
func Follow(ctx context.Context, e *command.Env, v View, dep id.Deployment) (*app.Deployment, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	f := &follower{client: app.NewDeploysClient(c), dep: dep, events: make(chan *app.DeployEvent)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.receive(ctx) }()
	tick := time.NewTicker(TickInterval)
	defer tick.Stop()
	defer v.Close()
	var last *app.Deployment
	for {
		select {
		case ev := <-f.events:
			d, err := show(v, ev)
			if err != nil {
				return nil, err
			}
			if d != nil {
				last = d
			}
		case err := <-done:
			if err != nil {
				return last, err
			}
			if last == nil || !last.Status.Phase.Ended() {
				return last, errs.New(errs.Unavailable, "the server ended the stream of deployment %s before the deployment ended", dep)
			}
			return last, nil
		case <-tick.C:
			v.Tick()
		case <-ctx.Done():
			return last, ctx.Err()
		}
	}
}

func show(v View, ev *app.DeployEvent) (*app.Deployment, error) {
	switch {
	case ev.Build != nil:
		v.Build(ev.Build)
	case ev.Log != nil:
		v.Log(ev.Log)
	case ev.Deployment != nil:
		d, err := entity.Decode[app.Deployment](ev.Deployment)
		if err != nil {
			return nil, err
		}
		v.Deployment(d)
		return d, nil
	}
	return nil, nil
}

type follower struct {
	client app.DeploysClient
	dep    id.Deployment
	offset *int64
	events chan *app.DeployEvent
}

// receive passes on the events of the server, across its restarts.
func (f *follower) receive(ctx context.Context) error {
	lost := time.Time{}
	for {
		got, err := f.once(ctx)
		if err == nil || ctx.Err() != nil || !errs.Is(err, errs.Unavailable) {
			return err
		}
		if got || lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost) > retryTimeout {
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *follower) once(ctx context.Context) (got bool, err error) {
	s, err := f.client.Follow(ctx, &app.FollowRequest{Deployment: f.dep, BuildOffset: f.offset})
	if err != nil {
		return false, err
	}
	defer s.Close()
	for {
		ev, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = true
		if ev.BuildOffset != nil {
			f.offset = ev.BuildOffset
		}
		select {
		case f.events <- ev:
		case <-ctx.Done():
			return got, ctx.Err()
		}
	}
}

// Finish follows a deployment and reports its outcome. With detach it prints
// only the id. An interrupt detaches too.
func Finish(ctx context.Context, e *command.Env, v View, appName string, d *app.Deployment, detach bool) error {
	if detach {
		v.Close()
		if e.JSON {
			return e.PrintJSONLine(map[string]any{"event": "detached", "deployment": d})
		}
		e.Printf("%s\n", d.ID)
		e.Notef("%s", advice(appName, "the deployment continues"))
		return nil
	}
	last, err := Follow(ctx, e, v, d.GetID())
	if ctx.Err() != nil {
		if last == nil || !last.Status.Phase.Ended() {
			e.Notef("\n%s", advice(appName, "the deployment "+string(d.ID)+" continues"))
		}
		return exit.With(exit.Interrupted, nil)
	}
	if err != nil {
		return errs.Wrap(err, "follow the deployment of %s", appName)
	}
	return Report(e.Console, describe(ctx, e, appName, last))
}

func advice(appName, what string) string {
	return fmt.Sprintf("%s on the server\n  watch it:  r app status %s -w\n  cancel it: r app cancel %s\n", what, appName, appName)
}

// describe adds the names of the versions of a deployment that ended, its URLs and the warnings of its build. On an
// error it leaves them out: the outcome is known without.
func describe(ctx context.Context, e *command.Env, appName string, d *app.Deployment) Outcome {
	o := Outcome{App: appName, Deployment: d}
	store, err := e.Store(ctx)
	if err != nil {
		return o
	}
	o.Version = VersionName(ctx, store, d.Status.Version)
	o.Previous = VersionName(ctx, store, d.Status.Previous)
	if d.Status.Phase == app.DeploymentPhaseSucceeded {
		o.URLs = URLs(ctx, e, d)
	}
	if d.Spec.Build != "" {
		if b, err := entity.Get[app.Build](ctx, store, d.Spec.Build); err == nil {
			o.Warnings = b.Status.Warnings
		}
	}
	return o
}

// VersionName returns "v3" for the id of a version, the id if it cannot be read.
func VersionName(ctx context.Context, r entity.Reader, v id.AppVersion) string {
	if v == "" {
		return ""
	}
	ver, err := entity.Get[app.AppVersion](ctx, r, v)
	if err != nil {
		return string(v)
	}
	return fmt.Sprintf("v%d", ver.Spec.Number)
}

// URLs returns the URLs of the app of a deployment: the deployment's own, and
// those of the app's routes.
func URLs(ctx context.Context, e *command.Env, d *app.Deployment) []string {
	var urls []string
	if d.Status.URL != "" {
		urls = append(urls, d.Status.URL)
	}
	if d.Spec.Preview != nil {
		return urls
	}
	routes, _, err := command.All[app.Route](ctx, e, entity.Query{Index: []entity.IndexMatch{{
		Attr: app.RouteAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(d.Spec.App)),
	}}})
	if err != nil || len(routes) == 0 {
		return urls
	}
	port := ""
	if c, err := e.Connect(ctx); err == nil {
		if st, err := server.NewServerClient(c).Status(ctx); err == nil {
			port = httpPort(st.IngressAddresses)
		}
	}
	for _, r := range routes {
		if r.Spec.Host != "*" && r.Spec.Preview == "" {
			if u := "http://" + r.Spec.Host + port + r.Spec.Path; !slices.Contains(urls, u) {
				urls = append(urls, u)
			}
		}
	}
	return urls
}

// httpPort returns ":8080" of the first address, empty for the default port.
func httpPort(addrs []string) string {
	if len(addrs) == 0 {
		return ""
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(addrs[0], "http://"))
	if err != nil || port == "80" {
		return ""
	}
	return ":" + port
}
