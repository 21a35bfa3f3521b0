package cli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/previews"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	rpcserver "miren.dev/runtime/servers/rpc"
	"miren.dev/runtime/testsupport/pgtest"
)

var update = flag.Bool("update", false, "write the golden files")

// fake is a server for tests of the command line: a real store behind the real
// RPC, and services that the test scripts.
type fake struct {
	t       *testing.T
	store   *pgstore.Store
	project schema.ID
	sources *source.Store
	socket  string

	mu       sync.Mutex
	calls    []string
	deploys  []*app.DeployRequest
	envs     []*app.SetEnvRequest
	runs     []*sandbox.RunRequest
	programs []*sandbox.RunCodeRequest
	files    *fakeFiles
	dialed   chan struct{} // a connection that begins with "reset" has begun
	lost     chan error    // it has ended

	templateBuilds []*sandbox.BuildTemplateRequest
	// The script of a deployment, set by the test.
	script func(ctx context.Context, f *fake, d *app.Deployment, send func(*app.DeployEvent) error) error
	// held makes Deploy answer that another deployment is under way.
	held   bool
	status server.StatusResponse
	logs   func(ctx context.Context, req *sandbox.LogsRequest, send func(*sandbox.LogBatch) error) error

	rpc *rpc.Server
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, store: pgtest.Store(t, api.Kinds()...), sources: source.NewStore(source.StoreConfig{Dir: t.TempDir()}), files: newFakeFiles(), dialed: make(chan struct{}, 1), lost: make(chan error, 1)}
	f.status = server.StatusResponse{Instance: "abcd1234", Version: "1.2.3", StartedAt: time.Now(), Ready: true}
	p := &core.Project{Meta: schema.Meta{ID: "proj-default", Name: "default"}}
	f.create(p)
	f.project = p.ID
	dir, err := os.MkdirTemp("", "rt-cli-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f.socket = filepath.Join(dir, "s.sock")
	f.serve()
	t.Setenv("RUNTIME_SERVER", "unix://"+f.socket)
	t.Setenv("RUNTIME_CLUSTER", "")
	t.Setenv("RUNTIME_STATE_DIR", "")
	t.Setenv("RUNTIME_PROJECT", "")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	return f
}

// serve begins to serve; stop ends it, as a restart of the server does.
func (f *fake) serve() (stop func()) {
	f.t.Helper()
	_ = os.Remove(f.socket)
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.serveOn(l, nil)
}

// serveTLS also serves on the network, with certificates of the authority that
// it returns.
func (f *fake) serveTLS() (address string, ca *identity.Authority) {
	f.t.Helper()
	ca, err := identity.Open(f.t.TempDir())
	if err != nil {
		f.t.Fatal(err)
	}
	cfg, err := ca.ServerTLS("127.0.0.1", "localhost")
	if err != nil {
		f.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.serveOn(l, cfg)
	return l.Addr().String(), ca
}

func (f *fake) serveOn(l net.Listener, cfg *tls.Config) (stop func()) {
	f.t.Helper()
	srv, err := rpc.NewServer(rpc.ServerOptions{TLS: cfg})
	if err != nil {
		f.t.Fatal(err)
	}
	sealer := schema.NewSealer(filepath.Join(f.t.TempDir(), "key"))
	people := users.NewTable(func() {})
	set := informer.New(informer.Config{Reader: f.store})
	bounds := quotas.New(f.store, set)
	core.RegisterKeys(srv, rpcserver.Keys(keys.New(f.store, sealer, people, func() {}, slog.New(slog.DiscardHandler)), bounds))
	core.RegisterUsers(srv, rpcserver.Users(&users.Service{Store: f.store, Table: people, CheckRole: func(context.Context, string) error { return nil }}))
	history.RegisterHistory(srv, rpcserver.History(f.store))
	secret.RegisterSecrets(srv, rpcserver.Secrets(&secrets.Service{Store: f.store, Sealer: sealer}))
	certificate.RegisterCertificates(srv, rpcserver.Certificates(&certificates.Service{Store: f.store, Sealer: sealer, Routes: &routes.Service{Store: f.store}}))
	event.RegisterEvents(srv, rpcserver.Events(&events.Service{Store: f.store}))
	core.RegisterQuotas(srv, rpcserver.Quotas(bounds))
	core.RegisterPolicies(srv, rpcserver.Policies(policies.New(f.store, set)))
	store.RegisterEntities(srv, remote.NewServer(f.store, api.Kinds()))
	server.RegisterServer(srv, fakeServer{f})
	server.RegisterNodes(srv, rpcserver.Nodes(&nodes.Service{Store: f.store}))
	metric.RegisterMetrics(srv, fakeMetrics{})
	server.RegisterDebug(srv, fakeDebug{})
	app.RegisterApps(srv, fakeApps{f})
	app.RegisterDeploys(srv, fakeDeploys{f})
	app.RegisterBuilds(srv, fakeBuilds{f})
	app.RegisterTasks(srv, rpcserver.Tasks(&tasks.Service{Store: f.store, Apps: &apps.Service{Store: f.store}}))
	addon.RegisterAddons(srv, rpcserver.Addons(&addons.Service{Store: f.store, Apps: &apps.Service{Store: f.store}, Informers: set}))
	app.RegisterRoutes(srv, fakeRoutes{f})
	sandbox.RegisterSandboxes(srv, fakeSandboxes{f})
	sandbox.RegisterFiles(srv, f.files)
	sandbox.RegisterPreviews(srv, rpcserver.Previews(&previews.Service{
		Store: f.store, Key: preview.NewKey([]byte("secret")), URL: func(label string) string { return "http://" + label + ".localhost/" },
	}))
	sandbox.RegisterTemplates(srv, fakeTemplates{f})
	interpreter.RegisterInterpreter(srv, fakeInterpreter{f})
	execution.RegisterExecutions(srv, newFakeExecutions(f))
	disk.RegisterDisks(srv, fakeDisks{f: f})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	ctx, cancel := context.WithCancel(context.Background())
	var informers sync.WaitGroup
	informers.Go(func() { _ = set.Run(ctx) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			informers.Wait()
			srv.Close()
			if err := <-done; err != nil {
				f.t.Error(err)
			}
		})
	}
	f.rpc = srv
	f.t.Cleanup(stop)
	return stop
}

func (f *fake) create(objects ...schema.Object) {
	f.t.Helper()
	for _, o := range objects {
		if o.EntityKind().Scope == schema.ScopeProject {
			o.GetMeta().Project = f.project
		}
		if err := entity.Create(f.t.Context(), f.store, o); err != nil {
			f.t.Fatalf("create %s: %v", o.EntityKind().Name, err)
		}
	}
}

func (f *fake) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func record(o schema.Object) *schema.Record {
	r, err := o.EntityKind().Encode(o)
	if err != nil {
		panic(err)
	}
	return r
}

type fakeServer struct{ *fake }

func (f fakeServer) Version(context.Context) (*server.VersionResponse, error) {
	return &server.VersionResponse{Version: "1.2.3", Commit: "abc", Date: "today", Instance: "abcd1234"}, nil
}
func (f fakeServer) Caller(ctx context.Context) (*server.CallerResponse, error) {
	return rpcserver.Caller(rpc.IdentityFrom(ctx)), nil
}
func (f fakeServer) Status(context.Context) (*server.StatusResponse, error) { return &f.status, nil }
func (f fakeServer) Stop(context.Context, *server.StopRequest) error        { return nil }
func (f fakeServer) Doctor(context.Context) (*server.DoctorResponse, error) {
	return &server.DoctorResponse{Checks: []server.Check{{Name: "postgres", Level: server.CheckLevelOk, Found: "answers"}}}, nil
}
func (f fakeServer) IssueIdentity(ctx context.Context, req *server.IssueIdentityRequest) (*server.IssueIdentityResponse, error) {
	end := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	serial := strings.ToLower(string(schema.NewID("serial")))
	cert, err := f.identities().Record(ctx, identities.Issued{Identity: req.Name, Serial: serial, Roles: req.Roles, ExpiresAt: end})
	if err != nil {
		return nil, err
	}
	return &server.IssueIdentityResponse{
		Certificate: "CERT", Key: "KEY", CA: "CA", ExpiresAt: end, Addresses: []string{"runtime.example.com:7443"}, Serial: cert.Spec.Serial,
	}, nil
}
func (f fakeServer) RevokeIdentity(ctx context.Context, req *server.RevokeIdentityRequest) (*server.RevokeIdentityResponse, error) {
	certs, err := f.identities().Revoke(ctx, req.Certificate, "root")
	resp := new(server.RevokeIdentityResponse)
	for _, c := range certs {
		resp.Certificates = append(resp.Certificates, *record(c))
	}
	return resp, err
}
func (f fakeServer) identities() *identities.Service { return &identities.Service{Store: f.store} }

type fakeApps struct{ *fake }

func (f fakeApps) find(ctx context.Context, name string) (*app.App, error) {
	return entity.ByName[app.App](ctx, f.store, f.project, name)
}

// roll makes a deployment of an app.
func (f *fake) roll(ctx context.Context, name string, kind app.RolloutKind, message string) (*app.DeploymentResponse, error) {
	a, err := entity.ByName[app.App](ctx, f.store, f.project, name)
	if errs.Is(err, errs.NotFound) {
		a = &app.App{Meta: schema.Meta{Project: f.project, Name: name}}
		err = entity.Create(ctx, f.store, a)
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	d := &app.Deployment{Meta: schema.Meta{Project: f.project}}
	d.Spec = app.DeploymentSpec{App: a.GetID(), Kind: kind, Message: message}
	d.Status.Phase, d.Status.StartedAt = app.DeploymentPhasePending, &now
	if err := entity.Create(ctx, f.store, d); err != nil {
		return nil, err
	}
	return &app.DeploymentResponse{Deployment: record(d)}, nil
}

func (f fakeApps) Create(ctx context.Context, req *app.AppRequest) (*app.AppResponse, error) {
	a := &app.App{Meta: schema.Meta{Project: f.project, Name: req.App}}
	return &app.AppResponse{App: *record(a)}, entity.Create(ctx, f.store, a)
}
func (f fakeApps) Delete(ctx context.Context, req *app.AppRequest) error {
	a, err := f.find(ctx, req.App)
	if err != nil {
		return err
	}
	return entity.Delete(ctx, f.store, a)
}
func (f fakeApps) SetEnv(ctx context.Context, req *app.SetEnvRequest) (*app.DeploymentResponse, error) {
	f.mu.Lock()
	f.envs = append(f.envs, req)
	f.mu.Unlock()
	if !req.Deploy {
		return &app.DeploymentResponse{}, nil
	}
	return f.roll(ctx, req.App, app.RolloutKindConfig, req.Message)
}
func (f fakeApps) Scale(ctx context.Context, req *app.ScaleRequest) (*app.ScaleResponse, error) {
	f.note("scale " + req.App + " " + fmt.Sprint(req.Set, req.Reset))
	a, err := f.find(ctx, req.App)
	if err != nil {
		return nil, err
	}
	return &app.ScaleResponse{App: *record(a), Deferred: true}, nil
}
func (f fakeApps) Maintain(ctx context.Context, req *app.MaintainRequest) (*app.AppResponse, error) {
	f.note(fmt.Sprint("maintain ", req.App, " ", req.On, " ", req.Message))
	a, err := f.find(ctx, req.App)
	if err != nil {
		return nil, err
	}
	return &app.AppResponse{App: *record(a)}, nil
}
func (f fakeApps) Rollback(ctx context.Context, req *app.RollbackRequest) (*app.DeploymentResponse, error) {
	f.note("rollback " + req.App + " " + req.To)
	return f.roll(ctx, req.App, app.RolloutKindRollback, req.Message)
}
func (f fakeApps) Restart(ctx context.Context, req *app.RestartRequest) (*app.DeploymentResponse, error) {
	return f.roll(ctx, req.App, app.RolloutKindRestart, req.Message)
}

func (f fakeApps) DeletePreview(ctx context.Context, req *app.AppPreviewRequest) error {
	return (&apps.Service{Store: f.store}).DeletePreview(ctx, req.Project, req.App, req.Preview)
}
func (f fakeApps) Promote(ctx context.Context, req *app.PromoteRequest) (*app.DeploymentResponse, error) {
	f.note("promote " + req.App + " " + req.Preview)
	return f.roll(ctx, req.App, app.RolloutKindPromote, req.Message)
}
func (f fakeApps) Cancel(_ context.Context, req *app.AppRequest) (*app.DeploymentResponse, error) {
	f.note("cancel " + req.App)
	return nil, errs.New(errs.NotFound, "no deployment of %s is under way", req.App)
}

type fakeDeploys struct{ *fake }

func (f fakeDeploys) PlanUpload(_ context.Context, req *app.PlanUploadRequest) (*app.PlanUploadResponse, error) {
	digest, missing, err := f.sources.Missing(req.Manifest)
	if err != nil {
		return nil, err
	}
	resp := &app.PlanUploadResponse{Source: string(digest)}
	for _, m := range missing {
		resp.Missing = append(resp.Missing, string(m))
	}
	return resp, nil
}
func (f fakeDeploys) Upload(ctx context.Context, req *app.UploadRequest, s rpc.ServerStream[rpc.Bytes, app.UploadResult]) error {
	n, err := f.sources.ReadPack(ctx, source.Digest(req.Source), s.Reader())
	if err != nil {
		return err
	}
	return s.Send(&app.UploadResult{Contents: int64(n)})
}
func (f fakeDeploys) Deploy(ctx context.Context, req *app.DeployRequest) (*app.DeploymentResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held {
		return nil, errs.New(errs.Conflict, "another deployment of %s is under way (dep-other)", req.App).With("lease", "dep-other").WithHint("wait for it")
	}
	f.deploys = append(f.deploys, req)
	return f.roll(ctx, req.App, app.RolloutKindDeploy, req.Message)
}
func (f fakeDeploys) Follow(ctx context.Context, req *app.FollowRequest, s rpc.ServerStream[rpc.None, app.DeployEvent]) error {
	d, err := entity.Get[app.Deployment](ctx, f.store, req.Deployment)
	if err != nil {
		return err
	}
	if f.script == nil {
		return errs.New(errs.Unimplemented, "the test has no script")
	}
	return f.script(ctx, f.fake, d, s.Send)
}
func (f fakeDeploys) Push(context.Context, *app.AppRequest, rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	return errs.New(errs.FailedPrecondition, "this server receives no pushes")
}

func (f fakeDeploys) Cancel(context.Context, *app.DeploymentRequest) (*app.DeploymentResponse, error) {
	return nil, errs.New(errs.Unimplemented, "cancel")
}

type fakeBuilds struct{ *fake }

func (f fakeBuilds) Logs(_ context.Context, _ *app.BuildLogsRequest, s rpc.ServerStream[rpc.None, app.BuildLog]) error {
	one := int64(1)
	for i, e := range []app.BuildEvent{
		{Kind: "started", Step: &one, Name: "[build 1/1] RUN make", At: time.Now()}, {Kind: "log", Step: &one, Text: "cc main.c", At: time.Now()},
	} {
		if err := s.Send(&app.BuildLog{Event: e, Offset: int64(i + 1)}); err != nil {
			return err
		}
	}
	return nil
}

type fakeRoutes struct{ *fake }

func (f fakeRoutes) Set(ctx context.Context, req *app.SetRouteRequest) (*app.RouteResponse, error) {
	a, err := entity.ByName[app.App](ctx, f.store, f.project, req.App)
	if err != nil {
		return nil, err
	}
	r := &app.Route{Meta: schema.Meta{Project: f.project}}
	r.Spec = app.RouteSpec{Host: req.Host, Path: "/", Key: req.Host + "/", App: a.GetID(), Service: "web"}
	if err := entity.Create(ctx, f.store, r); err != nil {
		return nil, err
	}
	return &app.RouteResponse{Route: *record(r)}, nil
}
func (f fakeRoutes) Configure(_ context.Context, req *app.ConfigureRouteRequest) (*app.RouteResponse, error) {
	f.note(fmt.Sprint("configure ", req.Host, req.Path, " ", *req.Settings.Rate, *req.Settings.MaxBodyBytes, req.Settings.ErrorPages, req.Passwords, req.Reset))
	r := &app.Route{Meta: schema.Meta{Project: f.project}}
	r.Spec = app.RouteSpec{Host: req.Host, Path: req.Path, Key: req.Host + req.Path, App: "app-shop", Service: "web", Settings: req.Settings}
	return &app.RouteResponse{Route: *record(r)}, nil
}
func (f fakeRoutes) Passwords(context.Context, *app.RoutePasswordsRequest) (*app.RoutePasswordsResponse, error) {
	return nil, errs.New(errs.FailedPrecondition, "for the ingress only")
}
func (f fakeRoutes) SetTCP(_ context.Context, req *app.SetTCPRouteRequest) (*app.RouteResponse, error) {
	f.note(fmt.Sprint("tcp ", req.Port, " ", req.App, " ", req.Service, req.Allow, req.ProxyProtocol))
	r := &app.TCPRoute{Meta: schema.Meta{Project: f.project}}
	r.Spec = app.TCPRouteSpec{Port: req.Port, Key: fmt.Sprint(req.Port), App: "app-shop", Service: "web"}
	return &app.RouteResponse{Route: *record(r)}, nil
}
func (f fakeRoutes) DeleteTCP(context.Context, *app.DeleteTCPRouteRequest) error { return nil }
func (f fakeRoutes) Delete(_ context.Context, req *app.DeleteRouteRequest) error {
	return errs.New(errs.NotFound, "there is no route for %s", req.Host)
}

func newSandbox(sid schema.ID, image string) *sandbox.Sandbox {
	s := sandbox.SandboxKind.New().(*sandbox.Sandbox)
	s.ID = sid
	s.Spec.Template.Image = image
	s.Spec.Template.Resources.SetDefaults()
	s.Status.Phase = sandbox.SandboxPhaseRunning
	return s
}

// result is the output and exit code of a command.
type result struct {
	out, err string
	code     int
}

// run runs a command with pipes; with terminal on a terminal of 100 columns.
func run(t *testing.T, terminal bool, stdin string, args ...string) result {
	t.Helper()
	var out, errw bytes.Buffer
	c := &console.Console{In: strings.NewReader(stdin), Out: &out, Err: &errw, Terminal: terminal, Size: func() (int, int) { return 100, 40 }}
	code := cli.Main(args, c, nil)
	return result{out.String(), errw.String(), code}
}

// ok runs a command that must succeed and returns its output.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, false, "", args...)
	if r.code != 0 {
		t.Fatalf("r %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

var volatile = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`\b(app|dep|bld|ver|rt|sb|proj|node|pool)-[0-9a-z]{16}\b`), "$1-ID"},
	{regexp.MustCompile(`"(revision|spec_revision|status_revision|create_revision)": \d+`), `"$1": N`},
	{regexp.MustCompile(`(revision|spec_revision|status_revision|create_revision): \d+`), `$1: N`},
}

var age = regexp.MustCompile(`(?m)(^|\s)(\d+[smh])\b( ago)?( *)`)

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	for _, v := range volatile {
		got = v.re.ReplaceAllString(got, v.to)
	}
	for range 2 { // the second finds spaces that follow another match
		got = age.ReplaceAllStringFunc(got, func(s string) string {
			m := age.FindStringSubmatch(s)
			if m[4] != "" { // in a table: as many spaces as after an age of one digit
				m[4] = strings.Repeat(" ", len(m[2])+len(m[4])-len("1s"))
			}
			return m[1] + "AGE" + m[3] + m[4]
		})
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it)\n--- got\n%s--- want\n%s", file, got, want)
	}
}

func contains(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

// fakeDebug is a server with two writers.
type fakeDebug struct{}

func (fakeDebug) Controllers(context.Context) (*server.ControllersResponse, error) {
	failed, seen := time.Now().Add(-200*time.Second), time.Now().Add(-time.Second/10)
	return &server.ControllersResponse{
		Revision: 812, Synced: true, LastSeen: &seen, Interruptions: 1,
		Informers: []server.InformerStatus{{Kind: "app", Entities: 2, Handlers: 1}, {Kind: "sandbox", Entities: 5, Handlers: 4}},
		Controllers: []server.ControllerStatus{
			{Name: "api", Creates: []string{"app", "sandbox"}, Deletes: []string{"app"}, Owns: []string{"app.spec.env"}},
			{
				Name: "pool", Controller: true, Kind: "sandbox_pool", Watches: []string{"sandbox"}, Reads: []string{"node"}, Creates: []string{"sandbox"},
				Owns:    []string{"sandbox_pool.status", "sandbox.labels.runtime/counted"},
				Shares:  []server.SharedField{{Field: "sandbox.spec.desired", Owner: "api", Condition: "to stop one of its own that is too many"}},
				Workers: 4, Ready: 1, Delayed: 2, Running: 3, Retrying: 1, Runs: 99,
				Failure: &server.RunFailure{Key: "pool-1", Message: "the store is away", At: failed},
			},
		},
	}, nil
}
