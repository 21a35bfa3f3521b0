// Package gitpush deploys what users push with git: it receives the push, uploads the
// files of the pushed commit as `r deploy` does, follows the deployment, and accepts the
// push only if the deployment succeeds.
//
// The server shows a client one branch: that of the app's active version, with its
// commit, if the commit was pushed to this server. So git itself refuses to replace it
// by an older commit, and pushes nothing if it serves already. There is no other state
// of a push: a failed one changes nothing that the next one meets.
package gitpush

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/gitrepo"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/text"
)

// maxRepository is the size beyond which the objects of an app's pushes are forgotten, in
// bytes. The next push then sends them again.
const maxRepository = 2 << 30

// separator is between project and app in the name of a repository.
const separator = "."

// maxDuration bounds a push, so that a client that stalls does not block the app. The
// deployment of a push goes on after it.
const maxDuration = 2 * time.Hour

// maxPushes bounds the pushes at the same time, and maxPushesOf those of one caller.
const (
	maxPushes   = 16
	maxPushesOf = 8
)

// readTime bounds how long the server reads the files of a commit.
const readTime = 10 * time.Minute

// Deployer rolls out apps, as apps.Service does.
type Deployer interface {
	Find(ctx context.Context, project, name string) (*app.App, error)
	DeploySource(ctx context.Context, project, name string, create bool, req apps.DeployRequest) (*app.Deployment, error)
	Follow(ctx context.Context, did id.Deployment, offset int64, emit func(apps.Progress) error) error
}

// Service receives pushes. It is safe for concurrent use.
type Service struct {
	Store   entity.Reader
	Apps    Deployer
	Sources *source.Store
	// Open opens the repositories, at the first push.
	Open   func(context.Context) (*gitrepo.Repos, error)
	Logger *slog.Logger
	// ReadTime bounds how long the server reads the files of a commit, since small ones
	// can name many; 0: readTime.
	ReadTime time.Duration

	mu    sync.Mutex
	repos *gitrepo.Repos
	busy  map[string]string // callers of the pushes under way, by repository
}

// Request names the app that a client pushes to.
type Request struct {
	Project, App string // names
	By           string // identity of the caller
}

// Receive serves a client of git push. The first deployment creates the app. Conflict
// while another push to the app is under way, ResourceExhausted if there are too many;
// why a push was refused is told to its client.
func (s *Service) Receive(ctx context.Context, req Request, in io.Reader, out io.Writer) error {
	if err := apps.CheckName(req.App); err != nil {
		return err
	}
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return err
	}
	branch, commit, err := s.serving(ctx, req)
	if err != nil {
		return err
	}
	repos, err := s.open(ctx)
	if err != nil {
		return err
	}
	name := string(pid) + separator + req.App
	if err := s.begin(name, req); err != nil {
		return err
	}
	defer s.end(name)
	s.sweep(ctx, repos)
	repo, err := prepare(ctx, repos, name)
	if err != nil {
		return err
	}
	if err := repo.Advertise(ctx, branch, commit); err != nil {
		return err
	}
	p := &push{s: s, req: req}
	ctx, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	if err := repo.Receive(ctx, in, out, p.accept); err != nil {
		return err
	}
	if p.deployed == "" {
		return nil
	}
	return repo.Keep(ctx, p.branch, p.deployed)
}

// prepare opens the repository of an app. It removes the objects of one that is too large.
func prepare(ctx context.Context, repos *gitrepo.Repos, name string) (*gitrepo.Repo, error) {
	repo, err := repos.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	n, err := repo.Size()
	if err != nil || n <= maxRepository {
		return repo, err
	}
	if err := repos.Remove(name); err != nil {
		return nil, err
	}
	return repos.Open(ctx, name)
}

func (s *Service) open(ctx context.Context) (*gitrepo.Repos, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repos == nil {
		repos, err := s.Open(ctx)
		if err != nil {
			return nil, err
		}
		s.repos, s.busy = repos, map[string]string{}
	}
	return s.repos, nil
}

// begin counts a push to the app of a repository.
func (s *Service) begin(name string, req Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.busy[name]; ok {
		return errs.New(errs.Conflict, "another push to %s is under way", req.App).WithHint("push again when it has ended; `r app cancel %s` stops its deployment", req.App)
	}
	own := 0
	for _, by := range s.busy {
		if by == req.By {
			own++
		}
	}
	if most := min(maxPushes-len(s.busy), maxPushesOf-own); most <= 0 {
		return errs.New(errs.ResourceExhausted, "%d pushes are under way, %d of them of %s: at most %d and %d of one caller are", len(s.busy), own, req.By, maxPushes, maxPushesOf).
			WithHint("push again in a while")
	}
	s.busy[name] = req.By
	return nil
}

func (s *Service) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, name)
}

func (s *Service) isBusy(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.busy[name]
	return ok
}

// sweep removes the repositories of apps that do not exist any more. A push of such an
// app that begins meanwhile fails, and can be repeated.
func (s *Service) sweep(ctx context.Context, repos *gitrepo.Repos) {
	names, err := repos.Names()
	for _, name := range names {
		project, appName, _ := strings.Cut(name, separator)
		if s.isBusy(name) {
			continue
		}
		if _, gerr := entity.ByName[app.App](ctx, s.Store, schema.ID(project), appName); !errs.Is(gerr, errs.NotFound) {
			continue // it exists, or that is unknown
		}
		if rerr := repos.Remove(name); rerr != nil {
			err = rerr
		}
	}
	if err != nil {
		s.Logger.Warn("repositories of deleted apps are still there", "error", err)
	}
}

// serving returns branch and commit of the active version of the app, empty if they are
// unknown, or the app does not exist.
func (s *Service) serving(ctx context.Context, req Request) (branch, commit string, err error) {
	a, err := s.Apps.Find(ctx, req.Project, req.App)
	if errs.Is(err, errs.NotFound) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	v, err := apps.ActiveVersion(ctx, s.Store, a)
	switch {
	case errs.Is(err, errs.FailedPrecondition), errs.Is(err, errs.NotFound):
		return "", "", nil
	case err != nil:
		return "", "", err
	case v.Spec.Git == nil || v.Spec.Git.Dirty:
		return "", "", nil
	}
	return v.Spec.Git.Branch, v.Spec.Git.Commit, nil
}

// push is one push to an app.
type push struct {
	s   *Service
	req Request

	branch   string
	deployed string // the commit, once it is
}

// accept deploys a push, and tells its client how that goes. Its error refuses the push.
func (p *push) accept(ctx context.Context, got *gitrepo.Push, w io.Writer) error {
	out := &printer{w: w}
	err := p.deploy(ctx, got, out)
	if err != nil {
		out.error(err)
	}
	return err
}

func (p *push) deploy(ctx context.Context, got *gitrepo.Push, out *printer) error {
	commit, err := p.choose(got)
	if err != nil {
		return err
	}
	opts, err := parseOptions(got.Options)
	if err != nil {
		return err
	}
	most := cmp.Or(p.s.ReadTime, readTime)
	read, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	req, err := p.read(read, got, commit, opts, out)
	if err != nil {
		if read.Err() != nil && ctx.Err() == nil {
			return errs.New(errs.ResourceExhausted, "the server did not read the files of the commit within %s, the most for a push", most).
				WithHint("push fewer files, folders and rules of .gitignore and .dockerignore")
		}
		return err
	}
	d, err := p.s.Apps.DeploySource(ctx, p.req.Project, p.req.App, true, *req)
	if err != nil {
		return err
	}
	if err := p.follow(ctx, d.GetID(), out); err != nil {
		return err
	}
	p.deployed = commit
	return nil
}

// read uploads the files of a commit, and returns what to deploy.
func (p *push) read(ctx context.Context, got *gitrepo.Push, commit string, opts options, out *printer) (*apps.DeployRequest, error) {
	limits := source.DefaultLimits
	tree, err := got.Checkout(ctx, commit, gitrepo.Limits{Files: limits.Files, Bytes: limits.Bytes})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := tree.Remove(); err != nil {
			p.s.Logger.Warn("the folder of a push is still there", "dir", tree.Dir, "error", err)
		}
	}()
	for _, m := range tree.Submodules {
		out.printf("warning: the submodule %s is not part of a push; its folder is empty", m)
	}
	src, err := findSource(tree.Dir, p.req.App, opts.folder)
	if err != nil {
		return nil, err
	}
	preview, err := opts.target(src.git, p.branch)
	if err != nil {
		return nil, err
	}
	if src.folder != "" {
		out.printf("uploads %s, which has the lock file of the workspace %s", src.name, src.folder)
	}
	digest, err := p.keep(ctx, tree.Dir, src.dir, out)
	if err != nil {
		return nil, err
	}
	return &apps.DeployRequest{
		Source: digest, Folder: src.folder, Canary: opts.canary, Preview: preview, Message: text.Cut(tree.Subject, app.MaxMessage), RequestedBy: p.req.By,
		Git: &app.GitInfo{Commit: commit, Branch: p.branch},
	}, nil
}

// choose returns the commit of the one branch that is pushed. Tags may come with it, and
// mean nothing.
func (p *push) choose(got *gitrepo.Push) (string, error) {
	commit := ""
	for _, u := range got.Updates {
		branch, ok := u.Branch()
		switch {
		case !ok && strings.HasPrefix(u.Ref, "refs/tags/"):
		case !ok:
			return "", errs.New(errs.InvalidArgument, "%s is no branch", u.Ref).WithHint("push a branch: git push REMOTE main")
		case u.Commit == "":
			return "", errs.New(errs.InvalidArgument, "a push deletes nothing here").WithHint("`r preview delete` ends a preview, `r app delete` an app")
		case commit != "":
			return "", errs.New(errs.InvalidArgument, "the push has the branches %s and %s, and one deployment is of one branch", p.branch, branch).WithHint("push them one after the other")
		default:
			p.branch, commit = branch, u.Commit
		}
	}
	if commit == "" {
		return "", errs.New(errs.InvalidArgument, "the push has no branch").WithHint("push a branch: git push REMOTE main")
	}
	return commit, nil
}

// previewName returns the name of the preview of a branch.
func previewName(branch string) string {
	branch = strings.TrimLeftFunc(strings.ToLower(branch), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	if branch != "" && branch[0] <= '9' {
		branch = "b-" + branch
	}
	return text.Name(branch, app.MaxPreviewName)
}

// keep puts the files of a folder of a commit into the store of sources, and returns their digest.
func (p *push) keep(ctx context.Context, commit, dir string, out *printer) (source.Digest, error) {
	tree, err := source.Walk(ctx, dir, source.WalkOptions{Top: commit})
	if err != nil {
		return "", err
	}
	defer tree.Close()
	for _, skipped := range tree.Skipped {
		out.printf("skipped %s", skipped)
	}
	encoded, err := tree.Manifest.Encode()
	if err != nil {
		return "", err
	}
	d, missing, err := p.s.Sources.Missing(encoded)
	if err != nil || len(missing) == 0 {
		return d, err
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(tree.WritePack(ctx, w, missing, func(int64) {}))
	}()
	_, err = p.s.Sources.ReadPack(ctx, d, r)
	r.Close()
	<-done
	return d, err
}

// follow tells how a deployment goes until it has ended. Its error says why it failed.
func (p *push) follow(ctx context.Context, did id.Deployment, out *printer) error {
	var lines app.Lines
	var last *app.Deployment
	err := p.s.Apps.Follow(ctx, did, 0, func(progress apps.Progress) error {
		if progress.Build != nil {
			e := apps.BuildEvent(progress.Build)
			if l := e.Line(); l != "" {
				return out.printf("%s", l)
			}
			return nil
		}
		last = progress.Deployment
		for _, l := range lines.Deployment(last, time.Now()) {
			if err := out.printf("%s", l); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return errs.Wrap(err, "the deployment %s goes on, but it cannot be followed", did)
	case last.Status.Phase == app.DeploymentPhaseSucceeded:
		_ = out.printf("%s serves", p.req.App) // as it does without a reader, too
		if last.Status.URL != "" {
			_ = out.printf("  %s", last.Status.URL)
		}
		return nil
	case last.Status.Phase == app.DeploymentPhaseCanceled:
		return errs.New(errs.FailedPrecondition, "the deployment of %s was canceled", p.req.App)
	case last.Status.Failure == nil:
		return errs.New(errs.Internal, "the deployment of %s failed, and the server gave no reason", p.req.App)
	}
	f := last.Status.Failure
	out.printf("the deployment of %s failed (%s)", p.req.App, f.Reason)
	for _, fact := range f.Facts() {
		out.printf("  %-10s %s", fact[0], fact[1])
	}
	for _, l := range f.LogTail {
		out.printf("  | %s", l)
	}
	failure := errs.New(errs.FailedPrecondition, "%s", f.Message)
	if f.Hint != "" {
		return failure.WithHint("%s", f.Hint)
	}
	return failure
}

// printer writes lines for the user's terminal.
type printer struct{ w io.Writer }

func (p *printer) printf(format string, args ...any) error {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		if _, err := io.WriteString(p.w, strings.Map(plain, line)+"\n"); err != nil {
			return errs.New(errs.Unavailable, "the client of the push is gone: %w", err)
		}
	}
	return nil
}

// plain replaces control characters, which would act on the terminal.
func plain(r rune) rune {
	if r != '\t' && unicode.IsControl(r) {
		return ' '
	}
	return r
}

// error tells an error, and what to do about it.
func (p *printer) error(err error) {
	_ = p.printf("error: %v", err) // the push is refused in any case
	if hint := errs.HintOf(err); hint != "" {
		_ = p.printf("hint: %s", hint)
	}
}
