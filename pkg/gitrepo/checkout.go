package gitrepo

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Limits bound the files of a commit. A commit has at most foldersPerFile times as many
// folders as it may have files.
type Limits struct {
	Files int   // files, links and submodules
	Bytes int64 // bytes of all files together
}

const (
	foldersPerFile = 4
	maxSubmodules  = 100 // most that a Tree names
)

// Tree is the files of a commit in a folder.
type Tree struct {
	Dir string
	// Subject is the first line of the commit's message.
	Subject string
	// Submodules are the paths of the first submodules, whose folders are empty.
	Submodules []string
}

// Remove removes the folder.
func (t *Tree) Remove() error { return os.RemoveAll(filepath.Dir(t.Dir)) }

// Checkout lays the files of a commit of the push out in a folder. Nothing is written
// outside of it; links in it may lead anywhere. ResourceExhausted beyond the limits.
func (p *Push) Checkout(ctx context.Context, commit string, limits Limits) (_ *Tree, err error) {
	t := &Tree{}
	if err := p.measure(ctx, commit, limits, t); err != nil {
		return nil, err
	}
	subject, err := p.repo.git(ctx, p.env, "log", "-1", "--no-show-signature", "--format=%s", commit)
	if err != nil {
		return nil, err
	}
	t.Subject = strings.ToValidUTF8(strings.TrimSpace(subject), "�")
	work, err := os.MkdirTemp(p.repo.dir, "work-")
	if err != nil {
		return nil, errs.New(errs.Unavailable, "folder for the source: %w", err)
	}
	t.Dir = filepath.Join(work, "source")
	defer func() {
		if err != nil {
			_ = t.Remove() // the next push removes it otherwise
		}
	}()
	if err := os.Mkdir(t.Dir, 0o700); err != nil {
		return nil, errs.New(errs.Unavailable, "folder for the source: %w", err)
	}
	for _, dir := range []string{work, t.Dir} {
		if err := os.Chown(dir, p.repo.repos.cfg.User.UID, p.repo.repos.cfg.User.GID); err != nil {
			return nil, errs.New(errs.Unavailable, "folder for the source: %w", err)
		}
	}
	env := append([]string{"GIT_WORK_TREE=" + t.Dir, "GIT_INDEX_FILE=" + filepath.Join(work, "index")}, p.env...)
	for _, args := range [][]string{{"read-tree", commit}, {"checkout-index", "--all", "--quiet"}} {
		if _, err := p.repo.git(ctx, env, args...); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// measure checks the files of a commit before they are written.
func (p *Push) measure(ctx context.Context, commit string, limits Limits, t *Tree) error {
	if commit == "" || strings.HasPrefix(commit, "-") {
		return errs.New(errs.InvalidArgument, "%q is no commit", commit)
	}
	cmd := p.repo.command(ctx, p.env, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", commit)
	sum := &measured{limits: limits, tree: t}
	problems := &head{left: maxProblem}
	cmd.Stdout, cmd.Stderr = sum, problems
	err := cmd.Run()
	switch {
	case sum.err != nil:
		return sum.err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errs.New(errs.InvalidArgument, "git ls-tree: %w: %s", err, strings.TrimSpace(problems.String()))
	}
	return nil
}

// measured adds up the output of ls-tree: "MODE TYPE OBJECT SIZE\tPATH" and a zero byte.
type measured struct {
	limits Limits
	tree   *Tree
	rest   []byte
	bytes  int64
	err    error

	files, folders int
}

// maxEntry bounds the path of a file, in bytes.
const maxEntry = 8 << 10

func (m *measured) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != 0 {
			if m.rest = append(m.rest, b); len(m.rest) > maxEntry {
				m.err = errs.New(errs.ResourceExhausted, "a path of the commit is longer than %d bytes", maxEntry)
				return 0, m.err
			}
			continue
		}
		if m.err = m.add(string(m.rest)); m.err != nil {
			return 0, m.err
		}
		m.rest = m.rest[:0]
	}
	return len(p), nil
}

func (m *measured) add(entry string) error {
	facts, path, _ := strings.Cut(entry, "\t")
	words := strings.Fields(facts)
	if len(words) != 4 {
		return errs.New(errs.Internal, "git ls-tree says %q", entry)
	}
	if words[1] == "tree" { // folders that name each other many times need few objects
		if m.folders++; m.folders > foldersPerFile*m.limits.Files {
			return errs.New(errs.ResourceExhausted, "the commit has more than %d folders", foldersPerFile*m.limits.Files)
		}
		return nil
	}
	if m.files++; m.files > m.limits.Files {
		return errs.New(errs.ResourceExhausted, "the commit has more than %d files", m.limits.Files)
	}
	if words[1] == "commit" {
		if len(m.tree.Submodules) < maxSubmodules {
			m.tree.Submodules = append(m.tree.Submodules, path)
		}
		return nil
	}
	n, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil {
		return errs.New(errs.Internal, "git ls-tree says %q", entry)
	}
	if m.bytes += n; m.bytes > m.limits.Bytes {
		return errs.New(errs.ResourceExhausted, "the files of the commit have more than %d bytes", m.limits.Bytes)
	}
	return nil
}
