package gitrepo

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

const (
	// maxRefs bounds the branches and tags of a push.
	maxRefs = 1000
	// maxOptions bounds the options of a push.
	maxOptions = 100
	// maxLine bounds a line about a branch, a tag or an option, in bytes.
	maxLine = 4 << 10
)

// Update is a branch or tag that a push changes.
type Update struct {
	Ref    string // refs/heads/main
	Commit string // "": the client deletes it
}

// Branch returns the name of the branch; false if it is none.
func (u Update) Branch() (string, bool) { return strings.CutPrefix(u.Ref, "refs/heads/") }

// Push is a push that was received completely, and counts for nothing yet.
type Push struct {
	Updates []Update
	Options []string // as `git push -o` gives them, in order

	repo *Repo
	env  []string // leads git to the objects in the quarantine
}

// Advertise sets what clients see as the repository's branches: one with a commit, if
// that is here, or none. So a client refuses to push an older commit without
// --force, and pushes nothing if it has that commit itself.
func (r *Repo) Advertise(ctx context.Context, branch, commit string) error {
	const below = "refs/namespaces/" + namespace + "/"
	r.shown = ""
	refs, err := r.git(ctx, nil, "for-each-ref", "--format=%(refname)", below)
	if err != nil {
		return err
	}
	for ref := range strings.FieldsSeq(refs) {
		if _, err := r.git(ctx, nil, "update-ref", "-d", ref); err != nil {
			return err
		}
	}
	if branch == "" || commit == "" || strings.HasPrefix(commit, "-") {
		return nil
	}
	if _, err := r.git(ctx, nil, "cat-file", "-e", commit+"^{commit}"); err != nil {
		return ctx.Err() // not here: another server received it, or a folder was deployed
	}
	if _, err := r.git(ctx, nil, "check-ref-format", "refs/heads/"+branch); err != nil {
		return ctx.Err() // a client that is not git named the branch of a folder
	}
	if _, err = r.git(ctx, nil, "update-ref", below+"refs/heads/"+branch, commit); err == nil {
		r.shown = branch
	}
	return err
}

// Keep remembers the last accepted commit of a branch, so that clients need not send its objects
// again. The name of its reference has no slashes: a branch may have another one as its folder.
func (r *Repo) Keep(ctx context.Context, branch, commit string) error {
	sum := sha256.Sum256([]byte(branch))
	_, err := r.git(ctx, nil, "update-ref", kept+hex.EncodeToString(sum[:16]), commit)
	return err
}

// fits returns an error for a branch that cannot be beside the one that clients see, as main/x
// beside main: git finds that out only after the push was accepted.
func (r *Repo) fits(p *Push) error {
	for _, u := range p.Updates {
		b, ok := u.Branch()
		if ok && r.shown != "" && (strings.HasPrefix(b, r.shown+"/") || strings.HasPrefix(r.shown, b+"/")) {
			return errs.New(errs.InvalidArgument, "the branch %s cannot be beside %s, which serves", b, r.shown)
		}
	}
	return nil
}

// Receive serves one client of git push until it has ended. It calls accept once the
// whole push is here; what accept writes is shown to the user, in lines, while it runs.
// The push counts only if accept returns nil. accept is not called for a client that
// pushes nothing. Receive returns an error if the protocol failed, not if accept refused
// the push, and ResourceExhausted if git takes too much CPU time to unpack it.
//
// A read of in may go on after Receive has returned; the caller ends it.
func (r *Repo) Receive(ctx context.Context, in io.Reader, out io.Writer, accept func(context.Context, *Push, io.Writer) error) error {
	cmd := r.command(ctx, []string{"GIT_NAMESPACE=" + namespace}, "receive-pack", r.dir)
	problems := &head{left: maxProblem}
	cmd.Stdout, cmd.Stderr = out, problems
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return errs.New(errs.Unavailable, "git receive-pack: %w", err)
	}
	question, asks, err := os.Pipe()
	if err != nil {
		return errs.New(errs.Unavailable, "git receive-pack: %w", err)
	}
	defer question.Close()
	hears, answer, err := os.Pipe()
	if err != nil {
		asks.Close()
		return errs.New(errs.Unavailable, "git receive-pack: %w", err)
	}
	defer answer.Close()
	cmd.ExtraFiles = []*os.File{asks, hears} // 3 and 4 in hook.sh
	err = cmd.Start()
	asks.Close()
	hears.Close()
	if err != nil {
		return errs.New(errs.FailedPrecondition, "git receive-pack: %w", err)
	}
	go func() { // ends with in
		_, _ = io.Copy(stdin, in) // git sees a push that was cut off
		stdin.Close()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	unpacked := false
	wg.Go(func() {
		defer answer.Close() // without the word that accepts, the hook refuses
		p, err := r.asked(question)
		unpacked = p != nil
		if err == nil && p != nil {
			err = r.fits(p)
		}
		lines := &lines{to: answer}
		if err != nil {
			_, _ = fmt.Fprintf(lines, "error: %v\n", err) // the push is refused in any case
			_ = answer.Close()
			_, _ = io.Copy(io.Discard, question) // so that the hook comes to read the answer
		}
		if err != nil || p == nil {
			return
		}
		err = accept(ctx, p, lines)
		if ferr := lines.flush(); err != nil || ferr != nil {
			return
		}
		_, _ = io.WriteString(answer, "accept\n") // a hook that was ended accepts nothing
	})
	err = cmd.Wait()
	cancel()
	question.Close() // ends the read if the hook was not run
	wg.Wait()
	var exit *exec.ExitError
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() // of the processes that it has waited for, too
	switch {
	case !unpacked && used >= r.repos.cfg.CPU*3/4: // the kernel counts in ticks where it enforces the limit
		return errs.New(errs.ResourceExhausted, "git took more than %s of CPU time to unpack the push, the most for one", r.repos.cfg.CPU).
			WithHint("push less history: a clone with --depth 1")
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return errs.New(errs.Unavailable, "git receive-pack: %w: %s", err, strings.TrimSpace(problems.String()))
	}
	return errs.New(errs.Unavailable, "git receive-pack: %w", err)
}

// asked reads the question of the hook; nil if it was not run.
func (r *Repo) asked(question io.Reader) (*Push, error) {
	s := bufio.NewScanner(io.LimitReader(question, (maxRefs+maxOptions)*maxLine))
	s.Buffer(nil, maxLine)
	p := &Push{repo: r}
	for s.Scan() {
		line := s.Text()
		if dir, ok := strings.CutPrefix(line, "quarantine "); ok {
			p.env = []string{"GIT_OBJECT_DIRECTORY=" + cmp.Or(dir, r.dir+"/objects"), "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + r.dir + "/objects"}
			continue
		}
		if option, ok := strings.CutPrefix(line, "option "); ok {
			if len(p.Options) >= maxOptions {
				return nil, errs.New(errs.InvalidArgument, "the push has more than %d options", maxOptions)
			}
			p.Options = append(p.Options, option)
			continue
		}
		if line == "end" {
			return p, nil
		}
		words := strings.SplitN(line, " ", 3)
		if len(words) != 3 || len(p.Updates) >= maxRefs {
			return nil, errs.New(errs.InvalidArgument, "git pushes %q", line)
		}
		u := Update{Ref: words[2], Commit: words[1]}
		if strings.Trim(u.Commit, "0") == "" {
			u.Commit = ""
		}
		p.Updates = append(p.Updates, u)
	}
	return nil, s.Err()
}

// lines passes text to the hook by whole lines. Each begins with a dot, so that none of
// them is the word that accepts.
type lines struct {
	to   io.Writer
	rest strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n':
			if err := l.flush(); err != nil {
				return 0, err
			}
		case b == 0 || b == '\r':
		case l.rest.Len() < maxLine:
			l.rest.WriteByte(b)
		}
	}
	return len(p), nil
}

func (l *lines) flush() error {
	if l.rest.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(l.to, "."+l.rest.String()+"\n")
	l.rest.Reset()
	return err
}
