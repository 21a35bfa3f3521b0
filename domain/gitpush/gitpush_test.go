package gitpush

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/gitrepo"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/sysuser"
	"miren.dev/runtime/testsupport/gittest"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a server that receives pushes, without builds: the test decides how the
// deployments end that the service accepts.
type env struct {
	*apps.Service
	*gittest.Repo
	t       *testing.T
	pushes  *Service
	address string
	// end decides the end of a deployment; nil: it succeeds.
	end  func(ctx context.Context, d *app.Deployment) error
	last *app.Deployment
	errs chan error // of Receive
	// ctx is that of calls: it ends with the client's connection.
	ctx atomic.Pointer[context.Context]
}

// Follow ends a deployment as its controllers do, and tells it.
func (e *env) Follow(ctx context.Context, did id.Deployment, _ int64, emit func(apps.Progress) error) error {
	d, err := entity.Get[app.Deployment](ctx, e.Store, did)
	if err != nil {
		return err
	}
	d.Status.Phase = app.DeploymentPhaseSucceeded
	if err := emit(apps.Progress{Build: &buildlog.Event{Kind: buildlog.StepLog, Step: 1, Text: "compiling\x1b[2J"}}); err != nil {
		return err
	}
	if e.end != nil {
		if err := e.end(ctx, d); err != nil {
			return err
		}
	}
	e.last = d
	a, err := entity.Get[app.App](ctx, e.Store, d.Spec.App)
	if err != nil {
		return err
	}
	if d.Status.Phase == app.DeploymentPhaseSucceeded && d.Spec.Preview == nil {
		v := app.NewAppVersion()
		v.Project, v.Name = a.Project, string(d.ID)
		svc := app.Service{}
		svc.SetDefaults()
		svc.Name = app.DefaultService
		v.Spec = app.AppVersionSpec{App: a.GetID(), Number: int64(a.Revision), Image: "image", Git: d.Spec.Git, Services: []app.Service{svc}}
		if err := entity.Create(ctx, e.Store, v); err != nil {
			return err
		}
		a.Status.Activate(v.GetID())
		if err := entity.UpdateStatus(ctx, e.Store, a); err != nil {
			return err
		}
	}
	l, err := apps.LeaseOf(ctx, e.Store, d.Spec.App)
	if err != nil {
		return err
	}
	if err := e.Store.Revoke(ctx, l.Lease); err != nil {
		return err
	}
	return emit(apps.Progress{Deployment: d})
}

func newEnv(t *testing.T) *env {
	t.Helper()
	client := gittest.New(t, t.TempDir())
	store := pgtest.Store(t, api.Kinds()...)
	if err := projects.Ensure(t.Context(), store, projects.Default); err != nil {
		t.Fatal(err)
	}
	e := &env{Repo: client, t: t, errs: make(chan error, 1)}
	e.until(t.Context())
	src := source.NewStore(source.StoreConfig{Dir: t.TempDir(), MaxBytes: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
	e.Service = &apps.Service{Store: store, Sources: src, Logger: slog.New(slog.DiscardHandler)}
	dir := filepath.Join(t.TempDir(), "git")
	e.pushes = &Service{Store: store, Apps: e, Sources: src, Logger: slog.New(slog.DiscardHandler), Open: func(context.Context) (*gitrepo.Repos, error) {
		return gitrepo.New(gitrepo.Config{Dir: dir, User: sysuser.Current()})
	}}
	e.address = gittest.Serve(t, func(path string, c net.Conn) {
		e.errs <- e.pushes.Receive(*e.ctx.Load(), Request{App: path, By: "alice"}, c, c)
	})
	e.Commit("index.html", "one\n")
	return e
}

func (e *env) until(ctx context.Context) { e.ctx.Store(&ctx) }

// push pushes to an app; want is what git prints, and refused whether it must fail.
func (e *env) push(refused bool, want, name string, args ...string) string {
	e.t.Helper()
	out, err := e.Try(append([]string{"push", "git://" + e.address + "/" + name}, args...)...)
	if rerr := wait.Receive(e.t, "the push is over", e.errs); rerr != nil {
		e.t.Fatalf("the server: %v\n%s", rerr, out)
	}
	if (err != nil) != refused || !strings.Contains(out, want) {
		e.t.Fatalf("git push %v: %v, want %q:\n%s", args, err, want, out)
	}
	return out
}

func TestPushDeploys(t *testing.T) {
	e := newEnv(t)
	first := e.Git("rev-parse", "HEAD")
	out := e.push(false, "remote: shop serves", "shop", "main")
	if !strings.Contains(out, "remote: #1 | compiling [2J") {
		t.Errorf("the build's output is not shown, or acts on the terminal: %q", out)
	}
	d := e.last
	if d.Spec.Git == nil || d.Spec.Git.Commit != first || d.Spec.Git.Branch != "main" || d.Spec.Message != "change index.html" || d.Spec.RequestedBy != "alice" || d.Spec.Preview != nil {
		t.Errorf("the deployment is %+v", d.Spec)
	}
	b, err := entity.Get[app.Build](t.Context(), e.Store, d.Spec.Build)
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.Sources.Manifest(source.Digest(b.Spec.Source))
	if err != nil || len(m.Files) != 1 || m.Files[0].Path != "index.html" {
		t.Errorf("the source is %+v, %v", m, err)
	}

	// What serves is the branch, and a failed push changes nothing.
	e.push(false, "Everything up-to-date", "shop", "main")
	second := e.Commit("index.html", "two\n")
	e.end = func(_ context.Context, d *app.Deployment) error {
		code := int64(137)
		d.Status.Phase = app.DeploymentPhaseFailed
		d.Status.Failure = &app.Failure{Reason: app.FailureReasonCrash, Message: "the process ended", ExitCode: &code, LogTail: []string{"no memory"}, Hint: "give it more"}
		return nil
	}
	out = e.push(true, "[remote rejected]", "shop", "main")
	for _, want := range []string{"failed (crash)", "exit code 137 (SIGKILL)", "| no memory", "error: the process ended", "hint: give it more"} {
		if !strings.Contains(out, "remote: ") || !strings.Contains(out, want) {
			t.Errorf("a failed deployment does not print %q:\n%s", want, out)
		}
	}
	e.end = nil
	e.push(false, first[:7]+".."+second[:7], "shop", "main")
	e.Git("reset", "--quiet", "--hard", first)
	e.push(true, "non-fast-forward", "shop", "main")
}

// TestPushedBranches: pushes of one branch are deployed, those of others become previews or are refused.
func TestPushedBranches(t *testing.T) {
	e := newEnv(t)
	e.Git("branch", "Feature/1.x")
	e.push(true, "pushes of the branch Feature/1.x are not deployed", "shop", "Feature/1.x")
	if _, err := e.Find(t.Context(), "", "shop"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a refused push created the app: %v", err)
	}
	e.push(true, "one deployment is of one branch", "shop", "main", "main:next")
	e.Git("tag", "v1")
	e.push(true, "the push has no branch", "shop", "v1")
	e.push(false, "shop serves", "shop", "main", "v1")
	e.push(true, "a push deletes nothing", "shop", ":main")

	e.Git("checkout", "--quiet", "Feature/1.x")
	e.Commit("app.toml", "[git]\nbranch = \"live\"\npreviews = true\n")
	e.push(false, "shop serves", "shop", "Feature/1.x")
	if p := e.last.Spec.Preview; p == nil || p.Name != "feature-1-x" || p.TTL != app.DefaultPreviewTTL {
		t.Errorf("the preview is %+v", p)
	}
	e.push(false, "shop serves", "shop", "HEAD:live")
	if e.last.Spec.Preview != nil {
		t.Error("a push of the configured branch became a preview")
	}
	e.Commit("app.toml", "[git]\nbranhc = \"live\"\n")
	e.push(true, `unknown key "git.branhc"`, "shop", "HEAD:live")
	// A link in the place of app.toml is not followed out of the source.
	e.Git("rm", "--quiet", "app.toml")
	if err := os.Symlink("/etc/passwd", filepath.Join(e.Dir, "app.toml")); err != nil {
		t.Fatal(err)
	}
	e.Git("add", "app.toml")
	e.Git("commit", "--quiet", "--message", "link")
	if out := e.push(true, "remote: error: ", "shop", "HEAD:live"); strings.Contains(out, "root:") {
		t.Errorf("a file of the server was read: %s", out)
	}
}

// TestBranchesBelowOthers: a branch may have the name of an earlier one as its folder. One that
// cannot be beside the branch that serves is refused before it is deployed.
func TestBranchesBelowOthers(t *testing.T) {
	e := newEnv(t)
	e.Commit("app.toml", "[git]\npreviews = true\n")
	e.push(false, "shop serves", "shop", "HEAD:feature")
	e.Commit("index.html", "two\n")
	e.push(false, "shop serves", "shop", "HEAD:feature/cart")
	e.Commit("index.html", "three\n")
	e.push(false, "shop serves", "shop", "HEAD:feature")

	e.push(false, "shop serves", "shop", "HEAD:main")
	before := e.last
	e.Commit("index.html", "four\n")
	e.push(true, "main/next cannot be beside main", "shop", "HEAD:main/next")
	if e.last != before {
		t.Errorf("a push that git refuses was deployed: %+v", e.last.Spec)
	}
}

func TestPushesAtOnce(t *testing.T) {
	e := newEnv(t)
	e.push(false, "shop serves", "shop", "main")
	e.Commit("index.html", "two\n")

	// Another deployment holds the app.
	a, err := e.Find(t.Context(), "", "shop")
	if err != nil {
		t.Fatal(err)
	}
	other, err := e.Deploy(t.Context(), a, apps.DeployRequest{Kind: app.RolloutKindRestart, Target: a.Status.Active()})
	if err != nil {
		t.Fatal(err)
	}
	e.push(true, string(other.ID), "shop", "main")
	l, err := apps.LeaseOf(t.Context(), e.Store, a.GetID())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Store.Revoke(t.Context(), l.Lease); err != nil {
		t.Fatal(err)
	}

	// Another push to the app is under way. One to another app is served.
	e.end = func(ctx context.Context, d *app.Deployment) error {
		err := e.pushes.Receive(ctx, Request{App: "shop"}, strings.NewReader(""), io.Discard)
		if !errs.Is(err, errs.Conflict) {
			t.Errorf("a second push: %v", err)
		}
		return nil
	}
	e.push(false, "shop serves", "shop", "main")
	e.end = nil

	// The repository of an app goes after the app.
	if err := e.Delete(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.push(false, "cart serves", "cart", "main")
	names, err := e.pushes.repos.Names()
	if err != nil || len(names) != 1 || !strings.HasSuffix(names[0], ".cart") {
		t.Errorf("repositories %v, %v", names, err)
	}
}

// TestClientGoesAway: the deployment of a push goes on without its client, and the next
// push is refused until that has ended.
func TestClientGoesAway(t *testing.T) {
	e := newEnv(t)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	e.until(ctx)
	var deployed *app.Deployment
	e.end = func(ctx context.Context, d *app.Deployment) error {
		deployed = d
		kill()
		<-ctx.Done()
		return ctx.Err()
	}
	cmd := exec.CommandContext(ctx, "git", "push", "git://"+e.address+"/shop", "main")
	cmd.Dir = e.Dir
	if err := cmd.Run(); err == nil {
		t.Fatal("a client that was killed succeeds")
	}
	_ = wait.Receive(t, "the push is over", e.errs) // how git ended
	e.until(t.Context())
	l, err := apps.LeaseOf(t.Context(), e.Store, deployed.Spec.App)
	if err != nil || l.Spec.Deployment != deployed.GetID() {
		t.Fatalf("the deployment does not go on: %+v, %v", l, err)
	}
	e.end = nil
	e.push(true, string(deployed.ID), "shop", "main")
	if err := e.Store.Revoke(t.Context(), l.Lease); err != nil {
		t.Fatal(err)
	}
	e.push(false, "shop serves", "shop", "main")
}

func TestPreviewNames(t *testing.T) {
	for branch, want := range map[string]string{
		"cart": "cart", "feature/Cart_2": "feature-cart-2", "42": "b-42", "-x-": "x", "ünï": "n", strings.Repeat("ab-", 20): strings.Repeat("ab-", 13) + "a",
	} {
		if got := previewName(branch); got != want {
			t.Errorf("%s becomes %q, want %q", branch, got, want)
		}
	}
}

// TestPushIsReadForAWhile: a commit whose files take the server too long to read is refused, and the next one is not.
func TestPushIsReadForAWhile(t *testing.T) {
	e := newEnv(t)
	e.pushes.ReadTime = time.Nanosecond
	e.push(true, "did not read the files of the commit within 1ns", "shop", "main")
	e.pushes.ReadTime = 0
	e.push(false, "[new branch]", "shop", "main")
}

// TestIgnoreRulesOfACommit: those of the root of the commit hold in the folder of an app, and those of the machine nowhere.
func TestIgnoreRulesOfACommit(t *testing.T) {
	e := newEnv(t)
	e.Commit(".gitignore", "*.secret\n")
	e.Commit("shop/index.html", "shop\n")
	e.Commit("shop/a.secret", "x\n")
	e.push(false, "[new branch]", "shop", "-o", "folder=shop", "main")
	b, err := entity.Get[app.Build](t.Context(), e.Store, e.last.Spec.Build)
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.Service.Sources.Manifest(source.Digest(b.Spec.Source))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 1 || m.Files[0].Path != "index.html" {
		t.Errorf("the files are %+v", m.Files)
	}
}

// TestPushesOfOneCaller leave room for those of others.
func TestPushesOfOneCaller(t *testing.T) {
	s := &Service{busy: map[string]string{}}
	for i := range maxPushesOf {
		if err := s.begin(fmt.Sprint(i), Request{App: "shop", By: "alice"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.begin("more", Request{App: "shop", By: "alice"}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more push of the caller: %v", err)
	}
	if err := s.begin("0", Request{App: "shop", By: "bob"}); !errs.Is(err, errs.Conflict) {
		t.Errorf("a push to the same app: %v", err)
	}
	for i := range maxPushes - maxPushesOf {
		if err := s.begin(fmt.Sprint("b", i), Request{App: "shop", By: fmt.Sprint("bob", i)}); err != nil {
			t.Error(err)
		}
	}
	if err := s.begin("most", Request{App: "shop", By: "carol"}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more push than there may be: %v", err)
	}
	s.end("0")
	if err := s.begin("more", Request{App: "shop", By: "alice"}); err != nil {
		t.Error(err)
	}
}
