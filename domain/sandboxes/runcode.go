package sandboxes

import (
	"cmp"
	"context"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

const (
	// maxInput bounds the program and the files of a request together, in bytes.
	maxInput = 8 << 20
	// maxInputFiles bounds the files of a request.
	maxInputFiles = 1000
	// exitTimeout is the exit code of a program that was ended because its time
	// was over, as timeout(1) has it.
	exitTimeout = 124
)

// RunCodeRequest is a program to run in a new sandbox of its language's
// template, or in one that exists.
type RunCodeRequest struct {
	RunOnceRequest               // Command, Image and App are empty; Template replaces the language's
	Sandbox        id.Sandbox    // runs in this one, which stays, as User; "": a new one
	Dir            string        // of the program, below the working directory; "": that itself
	Language       string        // name or alias; "": that of File's extension
	Code           []byte        // the program
	File           string        // name of its file; "": the language's
	Args           []string      // arguments of the program
	Files          []InputFile   // more files
	Timeout        time.Duration // ends the program with exit code 124; 0: never
	Confine        bool          // in a second layer inside the sandbox, by bubblewrap
}

// InputFile is a file to put into a sandbox.
type InputFile struct {
	Path       string // relative to the working directory, or absolute
	Data       []byte
	Executable bool
}

// RunCode runs a program as RunOnce runs a command: it claims or makes a
// sandbox of the language's template, writes the program to a file, compiles it
// where the language has a compiler, and runs it. Errors: those of RunOnce;
// InvalidArgument for an unknown language, and for files that are too large or
// whose paths lead out of the working directory.
func (s *Service) RunCode(ctx context.Context, project string, req RunCodeRequest) (id.Sandbox, Process, error) {
	if req.Image != "" || req.App != "" || len(req.Command) > 0 {
		return "", nil, errs.New(errs.InvalidArgument, "code runs in a sandbox of a template: image, app and command cannot be stated")
	}
	lang, files, err := req.check()
	if err != nil {
		return "", nil, err
	}
	if req.Template == "" && req.Sandbox == "" {
		req.Template = lang.Template
	}
	sb, end, err := s.codeSandbox(ctx, project, &req)
	if err != nil {
		return "", nil, err
	}
	sid := sb.GetID()
	to := s.Node.Files(sid, sandboxfs.View{})
	for _, f := range files {
		if err := putFile(ctx, to, f); err != nil {
			end()
			return sid, nil, err
		}
	}
	lang.File = files[0].Path
	command := lang.Command(path.Join(sb.Spec.Template.Workdir, req.Dir), req.Args)
	if req.Confine {
		command = confined(sb.Spec.Template.Workdir, command)
	}
	spec := ExecSpec{
		Command: command, Env: pairs(merge(lang.Env, req.ProcessEnv)), TTY: req.TTY, Rows: req.Rows, Cols: req.Cols, NoInput: req.NoInput,
	}
	if req.Sandbox != "" || req.Agent != "" { // it may be older than the request
		spec.User = req.User
	}
	p, err := s.start(ctx, sid, spec, req.Note)
	if err != nil {
		end()
		return sid, nil, err
	}
	if req.Timeout > 0 {
		p = withTimeout(p, req.Timeout, req.Note)
	}
	return sid, &once{Process: p, end: end}, nil
}

// codeSandbox returns the sandbox for a program; end deletes a new one.
func (s *Service) codeSandbox(ctx context.Context, project string, req *RunCodeRequest) (sb *sandbox.Sandbox, end func(), err error) {
	if req.Sandbox == "" {
		return s.ephemeral(ctx, project, &req.RunOnceRequest, req.Confine)
	}
	if sb, err = s.Running(ctx, req.Sandbox); err != nil {
		return nil, nil, err
	}
	return sb, func() {}, s.Policies.CheckProgram(ctx, sb, req.Confine)
}

// Check returns the language of a program. InvalidArgument for a program that
// cannot run.
func (req *RunCodeRequest) Check() (languages.Language, error) {
	lang, _, err := req.check()
	return lang, err
}

func (req *RunCodeRequest) check() (languages.Language, []InputFile, error) {
	lang, err := languageOf(req)
	if err != nil {
		return lang, nil, err
	}
	if err := CheckProcess(req.Args, req.ProcessEnv); err != nil {
		return lang, nil, err
	}
	files, err := inputs(lang, req)
	return lang, files, err
}

// languageOf returns the language of a program.
func languageOf(req *RunCodeRequest) (languages.Language, error) {
	if req.Language != "" {
		return languages.Lookup(req.Language)
	}
	return languages.OfFile(req.File)
}

// inputs returns the files of a request, the program first.
func inputs(lang languages.Language, req *RunCodeRequest) ([]InputFile, error) {
	name := cmp.Or(req.File, lang.File)
	if name != path.Base(name) || name == "." || name == ".." || strings.ContainsRune(name, 0) {
		return nil, errs.New(errs.InvalidArgument, "%q is not the name of a file", name)
	}
	files := append([]InputFile{{Path: path.Join(req.Dir, name), Data: req.Code}}, req.Files...)
	if len(files) > maxInputFiles {
		return nil, errs.New(errs.InvalidArgument, "%d files, at most %d are possible", len(files), maxInputFiles)
	}
	total := 0
	for _, f := range files {
		if f.Path == "" || strings.ContainsRune(f.Path, 0) || !path.IsAbs(f.Path) && !localPath(f.Path) {
			return nil, errs.New(errs.InvalidArgument, "file %q: the path leads out of the working directory", f.Path)
		}
		if total += len(f.Data); total > maxInput {
			return nil, errs.New(errs.InvalidArgument, "the program and its files have more than %d MiB", maxInput>>20).
				WithHint("`r sandbox create` a sandbox, `r sandbox cp` them into it, and `r sandbox exec` the program")
		}
	}
	return files, nil
}

// pairs returns variables as NAME=value, in order.
func pairs(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// localPath reports whether a relative path stays below its directory.
func localPath(p string) bool {
	clean := path.Clean(p)
	return clean != "." && clean != ".." && !strings.HasPrefix(clean, "../")
}

// putFile writes a file in a sandbox.
func putFile(ctx context.Context, files sandboxfs.FS, f InputFile) error {
	perm := fs.FileMode(0o644)
	if f.Executable {
		perm = 0o755
	}
	w, err := files.Write(ctx, f.Path, sandboxfs.WriteOptions{Perm: perm, Parents: true})
	if err != nil {
		return errs.Wrap(err, "write %s in the sandbox", f.Path)
	}
	defer w.Close()
	if _, err = w.Write(f.Data); err == nil {
		_, err = w.Commit(ctx)
	}
	return errs.Wrap(err, "write %s in the sandbox", f.Path)
}

// timed is a process that ends when its time is over.
type timed struct {
	Process
	timer   *time.Timer
	expired chan struct{}
	note    func(string)
	limit   time.Duration
}

func withTimeout(p Process, limit time.Duration, note func(string)) Process {
	t := &timed{Process: p, expired: make(chan struct{}), note: note, limit: limit}
	t.timer = time.AfterFunc(limit, func() {
		close(t.expired)
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		_ = p.Signal(ctx, sigkill) // a lost connection ends the process too
	})
	return t
}

const sigkill = 9

// Wait implements Process.
func (t *timed) Wait(ctx context.Context) (int, error) {
	code, err := t.Process.Wait(ctx)
	t.timer.Stop()
	select {
	case <-t.expired:
		if err == nil && code == killed {
			if t.note != nil {
				t.note("the program was ended after " + t.limit.String())
			}
			return exitTimeout, nil
		}
	default:
	}
	return code, err
}

// Close implements Process.
func (t *timed) Close() error {
	t.timer.Stop()
	return t.Process.Close()
}
