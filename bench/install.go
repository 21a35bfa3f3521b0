package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/source"
)

// install is an installation of the product, started as a user starts it, with
// one app deployed.
type install struct {
	bench   *bench
	dir     string
	in      *instance.Instance
	address string // address of the ingress
	api     string // address of the API for programs
	serve   *exec.Cmd
	ended   chan struct{}
	client  *rpc.Client
	store   *remote.Store
	app     *deployable
}

const (
	// startTimeout bounds the start of a server with an empty state directory.
	startTimeout = 2 * time.Minute
	// deployTimeout bounds a deployment, the first of which may make base images.
	deployTimeout = 5 * time.Minute
)

// installation starts the installation at the first call, and deploys the app.
func (b *bench) installation(ctx context.Context) (*install, error) {
	if b.inst != nil {
		return b.inst, nil
	}
	i := &install{bench: b, dir: b.scratch.path("install"), ended: make(chan struct{})}
	b.inst = i // stopped even if a later step fails
	url, err := freeURL("http")
	if err != nil {
		return nil, err
	}
	i.address = url.Host
	if url, err = freeURL("http"); err != nil {
		return nil, err
	}
	i.api = url.Host
	progress("  starting an installation in %s", i.dir)
	if err := i.start(ctx); err != nil {
		return nil, err
	}
	if i.app, err = newDeployable(b, "go-http"); err != nil {
		return nil, err
	}
	progress("  deploying examples/go-http")
	took, err := i.app.deploy(ctx, i)
	if err != nil {
		return nil, err
	}
	progress("  deployed in %s", took.Round(100*time.Millisecond))
	return i, nil
}

func (i *install) start(ctx context.Context) error {
	state, run := filepath.Join(i.dir, "state"), filepath.Join(i.dir, "run")
	logFile, err := os.Create(i.bench.scratch.path("logs", "server.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	i.serve = exec.Command(filepath.Join(i.bench.opt.bin, "runtime"), "server", "run",
		"--state-dir", state, "--run-dir", run, "--ingress-http-address", i.address, "--log-level", "info",
		"--api-address", i.api, "--api-rate", "0", "--ssh-address", "127.0.0.1:0", "--build-idle-stop", buildIdleStop.String())
	i.serve.Stdout, i.serve.Stderr = logFile, logFile
	i.serve.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := i.serve.Start(); err != nil {
		close(i.ended)
		return err
	}
	go func() {
		_ = i.serve.Wait()
		close(i.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if i.in, err = instance.Find(state, run); err == nil {
			if i.client, err = rpc.Dial(ctx, i.in.Socket("server.sock"), rpc.ClientOptions{}); err == nil {
				break
			}
		}
		select {
		case <-i.ended:
			return fmt.Errorf("the server ended: %s", tail(logFile.Name()))
		case <-ctx.Done():
			return fmt.Errorf("the server is not there: %w: %s", err, tail(logFile.Name()))
		case <-time.After(20 * time.Millisecond):
		}
	}
	i.store = remote.New(i.client)
	return i.ready(ctx)
}

// ready waits until every part answers.
func (i *install) ready(ctx context.Context) error {
	for {
		st, err := server.NewServerClient(i.client).Status(ctx)
		if err != nil {
			return err
		}
		if st.Ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the installation is not ready: %+v", st.Components)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop ends the server; removing the scratch directory ends the rest.
func (i *install) stop() error {
	if i.client != nil {
		i.client.Close()
	}
	if i.serve == nil || i.serve.Process == nil {
		return nil
	}
	_ = i.serve.Process.Signal(syscall.SIGTERM)
	select {
	case <-i.ended:
	case <-time.After(30 * time.Second):
		_ = i.serve.Process.Kill()
		<-i.ended
		return errors.New("the server did not end in 30 s")
	}
	return nil
}

// deployable is a copy of an example of which one line can be changed.
type deployable struct {
	name    string
	dir     string
	version int
}

// versionLine is the line to change.
const versionLine = `const version = "v%d"`

func newDeployable(b *bench, example string) (*deployable, error) {
	d := &deployable{name: example, dir: b.scratch.path("apps", example), version: 1}
	if err := os.CopyFS(d.dir, os.DirFS(filepath.Join(b.opt.src, "examples", example))); err != nil {
		return nil, err
	}
	return d, nil
}

// change makes the next version.
func (d *deployable) change() error {
	file := filepath.Join(d.dir, "main.go")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	old := fmt.Sprintf(versionLine, d.version)
	d.version++
	if !strings.Contains(string(b), old) {
		return fmt.Errorf("%s has no line %s", file, old)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(b), old, fmt.Sprintf(versionLine, d.version), 1)), 0o644)
}

// copyTo makes dir a copy of the source.
func (d *deployable) copyTo(dir string) (*deployable, error) {
	c := *d
	c.dir = dir
	return &c, os.CopyFS(dir, os.DirFS(d.dir))
}

// deploy does what `r deploy` does. It returns the time until the ingress
// answered with this version, once the deployment has ended.
func (d *deployable) deploy(ctx context.Context, i *install) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, deployTimeout)
	defer cancel()
	began := time.Now()
	c := app.NewDeploysClient(i.client)
	dep, err := d.request(ctx, c)
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- follow(ctx, c, dep) }()
	if err := d.serves(ctx, i.address, ended); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, <-ended
}

// request uploads the source and asks for a rollout.
func (d *deployable) request(ctx context.Context, c app.DeploysClient) (*app.Deployment, error) {
	tree, err := source.Walk(ctx, d.dir, source.WalkOptions{})
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	manifest, err := tree.Manifest.Encode()
	if err != nil {
		return nil, err
	}
	plan, err := c.PlanUpload(ctx, &app.PlanUploadRequest{Manifest: manifest})
	if err != nil {
		return nil, err
	}
	if len(plan.Missing) > 0 {
		if err := upload(ctx, c, tree, plan); err != nil {
			return nil, err
		}
	}
	resp, err := c.Deploy(ctx, &app.DeployRequest{App: d.name, Create: true, Source: plan.Source})
	if err != nil {
		return nil, err
	}
	return entity.Decode[app.Deployment](resp.Deployment)
}

func upload(ctx context.Context, c app.DeploysClient, tree *source.Tree, plan *app.PlanUploadResponse) error {
	st, err := c.Upload(ctx, &app.UploadRequest{Source: plan.Source})
	if err != nil {
		return err
	}
	defer st.Close()
	var missing []source.Digest
	for _, m := range plan.Missing {
		missing = append(missing, source.Digest(m))
	}
	if err := tree.WritePack(ctx, st.Writer(), missing, nil); err != nil {
		return err
	}
	if err := st.CloseSend(); err != nil {
		return err
	}
	_, err = st.Recv()
	return err
}

// follow returns nil when the deployment has succeeded.
func follow(ctx context.Context, c app.DeploysClient, dep *app.Deployment) error {
	st, err := c.Follow(ctx, &app.FollowRequest{Deployment: dep.GetID()})
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		e, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if e.Deployment != nil {
			if dep, err = entity.Decode[app.Deployment](e.Deployment); err != nil {
				return err
			}
		}
	}
	if dep.Status.Phase != app.DeploymentPhaseSucceeded {
		return fmt.Errorf("the deployment ended %s: %+v", dep.Status.Phase, dep.Status.Failure)
	}
	return nil
}

// serves returns when the app answers with its version. It reads the end of the
// deployment from ended, and puts it back.
func (d *deployable) serves(ctx context.Context, address string, ended chan error) error {
	want := fmt.Sprintf("v%d\n", d.version)
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	}}
	defer client.CloseIdleConnections()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.host()+"/", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK && strings.HasSuffix(string(body), want) {
				return nil
			}
		}
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			ended <- nil // the deployment succeeded: the answer must come now
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// host is the name under which the ingress knows the app.
func (d *deployable) host() string { return d.name + ".localhost" }
