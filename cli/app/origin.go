package app

import (
	"bytes"
	"context"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

// origin is a source that is no folder of this machine, as a folder that is
// removed afterwards.
type origin struct {
	dir    string // of the source
	root   string // what is removed
	branch string // the branch or tag that was asked for
}

func (o *origin) remove() { os.RemoveAll(o.root) }

// gitProtocols are those that git may use: no program that an URL names is run. A
// submodule, which the repository names, is no repository of this machine.
const (
	submoduleProtocols = "https:http:ssh:git"
	gitProtocols       = submoduleProtocols + ":file"
)

var (
	// scpLike is user@host:path, as Git services print it.
	scpLike = regexp.MustCompile(`^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^:]`)
	commit  = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
)

// isRepository reports whether an argument names a Git repository, and no folder.
func isRepository(arg string) bool {
	if scpLike.MatchString(arg) {
		return true
	}
	scheme, _, ok := strings.Cut(arg, "://")
	return ok && scheme != ""
}

// clone fetches URL[#REF[:FOLDER]] with the git of this machine and its credentials:
// one commit of a branch, a tag or a full commit hash, with submodules.
func clone(ctx context.Context, arg string, interactive bool) (*origin, error) {
	where, fragment, _ := strings.Cut(arg, "#")
	ref, folder, _ := strings.Cut(fragment, ":")
	shown := where
	if scheme, _, ok := strings.Cut(where, "://"); ok {
		if !strings.Contains(":"+gitProtocols+":", ":"+scheme+":") {
			return nil, errs.New(errs.InvalidArgument, "%s is no protocol to clone a repository by", scheme).WithHint("https://, http://, ssh://, git://, file:// and user@host:path are")
		}
		u, err := url.Parse(where)
		if err != nil { // the error may have a password
			return nil, errs.New(errs.InvalidArgument, "the repository is given by no valid %s URL", scheme)
		}
		shown = u.Redacted()
	}
	if strings.HasPrefix(ref, "-") {
		return nil, errs.New(errs.InvalidArgument, "%s: %q is no branch, tag or commit", shown, ref)
	}
	if folder != "" && !filepath.IsLocal(filepath.FromSlash(folder)) {
		return nil, errs.New(errs.InvalidArgument, "%s: the folder %q is outside of the repository", shown, folder)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "git is not installed: %w", err).WithHint("install it, or clone the repository elsewhere and call `r deploy` in its folder")
	}
	root, err := os.MkdirTemp("", "runtime-source-")
	if err != nil {
		return nil, errs.New(errs.Unavailable, "folder for the repository: %w", err)
	}
	o := &origin{root: root, branch: ref}
	// The app has the name of the folder, unless app.toml names it.
	name := strings.TrimSuffix(path.Base(strings.TrimRight(strings.ReplaceAll(where, ":", "/"), "/")), ".git")
	if text.Name(name, app.MaxAppName) == "" {
		name = "app"
	}
	repo := filepath.Join(root, text.Name(name, app.MaxAppName))
	git := func(protocols string, args ...string) error {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Env = append(os.Environ(), "GIT_ALLOW_PROTOCOL="+protocols)
		if !interactive {
			cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0")
		}
		var problems bytes.Buffer
		cmd.Stderr = &problems
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			text := strings.ReplaceAll(strings.TrimSpace(problems.String()), where, shown)
			return errs.New(errs.FailedPrecondition, "git cannot fetch %s: %s", shown, text).WithHint("try `git clone %s` yourself", shown)
		}
		return nil
	}
	steps := [][]string{{"clone", "--quiet", "--depth", "1", "--", where, repo}}
	switch {
	case commit.MatchString(ref):
		steps = [][]string{
			{"init", "--quiet", repo},
			{"-C", repo, "fetch", "--quiet", "--depth", "1", "--", where, ref},
			{"-C", repo, "checkout", "--quiet", "--detach", "FETCH_HEAD"},
		}
		o.branch = ""
	case ref != "":
		steps[0] = append([]string{"clone", "--branch", ref}, steps[0][1:]...)
	}
	for _, args := range steps {
		if err = git(gitProtocols, args...); err != nil {
			break
		}
	}
	if err == nil {
		err = git(submoduleProtocols, "-C", repo, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
	}
	if err != nil {
		o.remove()
		return nil, err
	}
	o.dir = filepath.Join(repo, filepath.FromSlash(folder))
	if st, err := os.Stat(o.dir); err != nil || !st.IsDir() {
		o.remove()
		return nil, errs.New(errs.NotFound, "%s has no folder %s", shown, folder)
	}
	return o, nil
}

// prebuilt makes the source of an app that is an image: a Dockerfile that names it,
// and the app.toml of dir if there is one.
func prebuilt(image, dir string) (*origin, error) {
	if image == "" || strings.ContainsAny(image, " \t\r\n\\$#") || strings.HasPrefix(image, "-") {
		return nil, errs.New(errs.InvalidArgument, "%q is no reference of an image", image).WithHint("such as registry.example.com/shop:1.2")
	}
	cfg, err := appconfig.Load(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "runtime-source-")
	if err != nil {
		return nil, errs.New(errs.Unavailable, "folder for the image: %w", err)
	}
	o := &origin{root: root}
	name, _, _ := strings.Cut(path.Base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	if name = text.Name(name, app.MaxAppName); name == "" {
		name = "app"
	}
	o.dir = filepath.Join(root, name)
	err = os.MkdirAll(filepath.Join(o.dir, ".runtime"), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(o.dir, "Dockerfile"), []byte("FROM "+image+"\n"), 0o644)
	}
	if err == nil && cfg.File != "" {
		var text []byte
		if text, err = fs.ReadFile(os.DirFS(dir), cfg.File); err == nil {
			err = os.WriteFile(filepath.Join(o.dir, ".runtime", "app.toml"), text, 0o644)
		}
	}
	if err != nil {
		o.remove()
		return nil, errs.New(errs.Unavailable, "source of the image: %w", err)
	}
	return o, nil
}

// fetch makes o.dir the folder of what is deployed: a repository, an image, or a folder
// that exists. The returned function removes what was made.
func (o *deployOptions) fetch(ctx context.Context, args []string) (func(), error) {
	nothing := func() {}
	if o.image != "" {
		made, err := prebuilt(o.image, o.dir)
		if err != nil {
			return nil, err
		}
		o.dir = made.dir
		return made.remove, nil
	}
	if len(args) == 0 {
		return nothing, nil
	}
	if !isRepository(args[0]) {
		o.dir = args[0]
		return nothing, nil
	}
	made, err := clone(ctx, args[0], o.InTerminal)
	if err != nil {
		return nil, err
	}
	o.dir, o.branch = made.dir, made.branch
	return made.remove, nil
}
