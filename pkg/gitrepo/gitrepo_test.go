package gitrepo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sysuser"
	"miren.dev/runtime/testsupport/gittest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a server of one repository, and a client with a repository of its own.
type env struct {
	*gittest.Repo
	t     *testing.T
	repos *Repos
	url   string
	// accept decides about the next push.
	accept func(context.Context, *Push, io.Writer) error
	last   *Push
	// branch and commit are those that the server advertises.
	branch, commit string
	served         chan struct{} // one for each client that was served
}

func newEnv(t *testing.T, cfg Config) *env {
	t.Helper()
	client := gittest.New(t, t.TempDir())
	cfg.Dir, cfg.User = filepath.Join(t.TempDir(), "git"), sysuser.Current()
	repos, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{Repo: client, t: t, repos: repos, served: make(chan struct{}, 1)}
	e.Commit("README", "first\n")
	e.url = "git://" + gittest.Serve(t, func(_ string, c net.Conn) {
		e.serve(c)
		e.served <- struct{}{}
	}) + "/shop"
	return e
}

// serve serves one client.
func (e *env) serve(c net.Conn) {
	repo, err := e.repos.Open(e.t.Context(), "shop")
	if err == nil {
		err = repo.Advertise(e.t.Context(), e.branch, e.commit)
	}
	if err != nil {
		e.t.Error(err)
		return
	}
	_ = repo.Receive(e.t.Context(), c, c, func(ctx context.Context, p *Push, w io.Writer) error {
		e.last = p
		return e.accept(ctx, p, w)
	})
}

// push pushes; want is a text that git prints, and refused whether the push must fail.
func (e *env) push(refused bool, want string, args ...string) string {
	e.t.Helper()
	out, err := e.Try(append([]string{"push", e.url}, args...)...)
	wait.Receive(e.t, "the server has ended with the push", e.served)
	if (err != nil) != refused || !strings.Contains(out, want) {
		e.t.Fatalf("git push %v: %v, want %q:\n%s", args, err, want, out)
	}
	return out
}

func accepted(context.Context, *Push, io.Writer) error { return nil }

// leftovers returns the objects and folders of pushes that were not accepted.
func (e *env) leftovers() (names []string) {
	e.t.Helper()
	for _, pattern := range []string{"objects/tmp_*", "objects/incoming-*", "work-*", "objects/pack/*.pack"} {
		m, err := filepath.Glob(filepath.Join(e.repos.cfg.Dir, "shop.git", pattern))
		if err != nil {
			e.t.Fatal(err)
		}
		names = append(names, m...)
	}
	return names
}

func TestPush(t *testing.T) {
	e := newEnv(t, Config{})
	first := e.Git("rev-parse", "HEAD")
	e.accept = func(_ context.Context, p *Push, w io.Writer) error {
		fmt.Fprintf(w, "building\naccept\nhalf a line")
		return errors.New("refused")
	}
	out := e.push(true, "remote: building", "main")
	if !strings.Contains(out, "remote: accept") || !strings.Contains(out, "remote: half a line") || !strings.Contains(out, "pre-receive hook declined") {
		t.Errorf("a refused push prints %s", out)
	}
	if b, ok := e.last.Updates[0].Branch(); !ok || b != "main" || e.last.Updates[0].Commit != first {
		t.Errorf("the push was %+v, want main at %s", e.last.Updates, first)
	}
	if left := e.leftovers(); len(left) > 0 {
		t.Errorf("a refused push left %v", left)
	}

	// A refused push has changed nothing, so the same one can be accepted.
	e.accept = func(ctx context.Context, p *Push, w io.Writer) error {
		tree, err := p.Checkout(ctx, p.Updates[0].Commit, Limits{Files: 10, Bytes: 1 << 20})
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(tree.Dir, "README"))
		fmt.Fprintf(w, "%s: %s", tree.Subject, text)
		return errors.Join(err, tree.Remove())
	}
	e.push(false, "remote: change README: first", "main")
	e.branch, e.commit = "main", first
	e.push(false, "Everything up-to-date", "main")

	// Only what the server says that it serves counts, so the same commit can be pushed again.
	e.branch, e.commit = "main", strings.Repeat("1", 40) // not here
	e.push(false, "[new branch]", "main")
	e.branch, e.commit = "a..b c", first // of a client that is not git
	e.push(false, "[new branch]", "main")
	e.branch, e.commit = "main", first
	second := e.Commit("README", "second\n")
	e.push(false, first[:7], "main")
	e.commit = second
	e.Git("reset", "--quiet", "--hard", first)
	e.push(true, "non-fast-forward", "main")
	e.push(false, "forced update", "--force", "main")
	if left := e.leftovers(); len(left) > 0 {
		t.Errorf("pushes left %v", left)
	}
}

// TestPushOptions: options reach the server as the client wrote them, and cannot pass for other words of the hook.
func TestPushOptions(t *testing.T) {
	e := newEnv(t, Config{})
	e.accept = accepted
	given := []string{"canary=10", "a b", "$(id) `id` \\n", "end", "accept", "quarantine /tmp", strings.Repeat("x", 1000)}
	var args []string
	for _, o := range given {
		args = append(args, "--push-option", o)
	}
	e.push(false, "[new branch]", append(args, "main")...)
	if !slices.Equal(e.last.Options, given) || len(e.last.Updates) != 1 {
		t.Errorf("the push has the options %q and the updates %v, want %q", e.last.Options, e.last.Updates, given)
	}
	e.push(false, "[new branch]", "main:next")
	if len(e.last.Options) > 0 {
		t.Errorf("a push without options has %q", e.last.Options)
	}
	args = nil
	for range maxOptions + 1 {
		args = append(args, "-o", "x")
	}
	e.push(true, "remote: error: the push has more than 100 options", append(args, "main:many")...)
	args = []string{"-o", strings.Repeat("x", maxLine)}
	for range 2 * maxOptions {
		args = append(args, "-o", strings.Repeat("y", 1000)) // more than a pipe holds
	}
	e.push(true, "remote: error: ", append(args, "main:long")...)
}

// TestKeptCommits: a client sends only what is new, also after its branch was
// advertised no more.
func TestKeptCommits(t *testing.T) {
	e := newEnv(t, Config{})
	e.Commit("large", strings.Repeat("0123456789abcdef\n", 4096))
	e.accept = accepted
	e.push(false, "Enumerating objects: 6", "--progress", "main")
	repo, err := e.repos.Open(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Keep(t.Context(), "main", e.Git("rev-parse", "HEAD")); err != nil {
		t.Fatal(err)
	}
	e.Commit("small", "x\n")
	out := e.push(false, "[new branch]", "--progress", "main")
	if !strings.Contains(out, "Total 3 ") {
		t.Errorf("the second push sent more than a commit, its folder and its file:\n%s", out)
	}
	if n, err := repo.Size(); err != nil || n == 0 {
		t.Errorf("size %d, %v", n, err)
	}
	if names, err := e.repos.Names(); err != nil || len(names) != 1 || names[0] != "shop" {
		t.Errorf("repositories %v, %v", names, err)
	}
	if err := e.repos.Remove("shop"); err != nil {
		t.Fatal(err)
	}
	e.push(false, "[new branch]", "main")
}

// TestShallowPush: a clone without history, as CI has, can be pushed.
func TestShallowPush(t *testing.T) {
	e := newEnv(t, Config{})
	e.Commit("README", "second\n")
	clone := filepath.Join(t.TempDir(), "clone")
	e.Git("clone", "--quiet", "--depth", "1", "file://"+e.Dir, clone)
	whole := e.Dir
	e.Dir = clone
	e.accept = accepted
	e.push(false, "[new branch]", "main")
	e.Dir = whole
	e.push(false, "main", "main")
}

func TestHostilePushes(t *testing.T) {
	e := newEnv(t, Config{MaxPack: 64 << 10})
	marker := filepath.Join(t.TempDir(), "executed")
	checkout := func(limits Limits, look func(*Tree) error) {
		e.accept = func(ctx context.Context, p *Push, w io.Writer) error {
			tree, err := p.Checkout(ctx, p.Updates[0].Commit, limits)
			if err == nil {
				err = errors.Join(look(tree), tree.Remove())
			}
			if err != nil {
				fmt.Fprintln(w, err)
			}
			return err
		}
	}
	nothing := func(*Tree) error { return nil }
	large := Limits{Files: 100, Bytes: 1 << 20}

	// Filters and hooks of the source are not run; attributes leave nothing out.
	e.Commit(".gitattributes", "* filter=evil export-ignore\n")
	e.Commit(".gitconfig", "[filter \"evil\"]\n\tsmudge = touch "+marker+"\n\trequired\n")
	e.Commit("hooks/post-checkout", "#!/bin/sh\ntouch "+marker+"\n")
	if err := os.Symlink("/etc/passwd", filepath.Join(e.Dir, "link")); err != nil {
		t.Fatal(err)
	}
	e.Git("add", "link")
	e.Git("commit", "--quiet", "--message", "link")
	checkout(large, func(tree *Tree) error {
		to, err := os.Readlink(filepath.Join(tree.Dir, "link"))
		if err == nil && to != "/etc/passwd" {
			err = fmt.Errorf("the link leads to %s", to)
		}
		_, ferr := os.Stat(filepath.Join(tree.Dir, "README"))
		return errors.Join(err, ferr)
	})
	e.push(false, "main", "main")
	if _, err := os.Stat(marker); err == nil {
		t.Error("a program of the source was run")
	}

	checkout(Limits{Files: 2, Bytes: 1 << 20}, nothing)
	e.push(true, "more than 2 files", "main")
	checkout(Limits{Files: 100, Bytes: 20}, nothing)
	e.push(true, "more than 20 bytes", "main")

	// A link in the place of a folder leads no file out of the source, and a folder named .git is refused.
	for name, mktree := range map[string]string{
		"a path through a link": "120000 blob %[1]s\ta\n040000 tree %[2]s\ta\n",
		"a folder .git":         "040000 tree %[2]s\t.git\n",
		"the folder above":      "040000 tree %[2]s\t..\n",
	} {
		blob := e.Git("hash-object", "-w", "README")
		inner := e.mktree("100644 blob " + blob + "\tconfig\n")
		tree := e.mktree(fmt.Sprintf(mktree, blob, inner))
		commit := e.Git("commit-tree", "-m", "evil", tree)
		checkout(large, nothing)
		out := e.push(true, "", commit+":refs/heads/evil")
		if !strings.Contains(out, "rejected") && !strings.Contains(out, "unpack") {
			t.Errorf("%s: %s", name, out)
		}
	}

	noise := make([]byte, 256<<10)
	rand.Read(noise) // never fails
	e.Commit("noise", string(noise))
	e.accept = accepted
	e.last = nil
	e.push(true, "", "main")
	if e.last != nil {
		t.Error("a push of more than the largest pack was accepted")
	}
	if left := e.leftovers(); len(left) > 0 {
		t.Errorf("refused pushes left %v", left)
	}
}

func (e *env) mktree(text string) string { return e.with(text, "mktree") }

// with runs git with a standard input.
func (e *env) with(text string, args ...string) string {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), "git", args...)
	cmd.Dir, cmd.Stdin = e.Dir, strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestSubmodulesAreNotFetched(t *testing.T) {
	e := newEnv(t, Config{})
	e.Git("update-index", "--add", "--cacheinfo", "160000,"+e.Git("rev-parse", "HEAD")+",vendor/lib")
	e.Git("commit", "--quiet", "--message", "submodule")
	e.accept = func(ctx context.Context, p *Push, w io.Writer) error {
		tree, err := p.Checkout(ctx, p.Updates[0].Commit, Limits{Files: 10, Bytes: 1000})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "without %v\n", tree.Submodules)
		return tree.Remove()
	}
	e.push(false, "remote: without [vendor/lib]", "main")
}

// TestServerGoesAway: a push whose server ends in the middle is not accepted, and leaves
// nothing that the next one meets.
func TestServerGoesAway(t *testing.T) {
	e := newEnv(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	repo, err := e.repos.Open(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	e.accept = func(context.Context, *Push, io.Writer) error {
		cancel()
		<-ctx.Done()
		// What a killed server leaves.
		for _, dir := range []string{"objects/tmp_objdir-incoming-x", "work-x"} {
			if err := os.MkdirAll(filepath.Join(repo.dir, dir), 0o700); err != nil {
				return err
			}
		}
		return context.Canceled
	}
	e.push(true, "", "main")
	e.accept = accepted
	e.push(false, "[new branch]", "main")
	if left := e.leftovers(); len(left) > 0 {
		t.Errorf("the next push left %v", left)
	}
}

func TestNamesOfRepositories(t *testing.T) {
	e := newEnv(t, Config{})
	for _, name := range []string{"", "..", "a/b", "/x", "../x"} {
		if _, err := e.repos.Open(t.Context(), name); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
