package mock_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/mock"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

func answers(t *testing.T, text string) *mock.Answers {
	t.Helper()
	a, err := mock.ParseAnswers([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sandbox returns a driver with one sandbox, "sb".
func sandbox(t *testing.T, text string) *mock.Driver {
	t.Helper()
	d := mock.NewMachine(mock.Config{Program: answers(t, text).Program, Dir: t.TempDir()}).Driver()
	_, err := d.Ensure(t.Context(), execution.Spec{ID: "sb", Idle: true, Network: execution.NetworkNone, User: "user", WorkDir: "/home/user", DiskBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Delete(context.Background(), "sb"); err != nil {
			t.Error(err)
		}
	})
	return d
}

func run(t *testing.T, d *mock.Driver, input string, command ...string) (stdout string, code int) {
	t.Helper()
	p, err := d.Exec(t.Context(), "sb", execution.ExecSpec{Command: command})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, _ = io.WriteString(p.Stdin(), input) // the program may have ended
	_ = p.Stdin().Close()
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }()
	code, err = p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), code
}

func TestAnswers(t *testing.T) {
	d := sandbox(t, `answers:
- {command: "^first", stdout: one}
- {command: "first", stdout: two}
- {command: "^cat$", stdout: "<{input}>"}
- {command: "python", code: "print\\((\\d+)\\)", stdout: "{1} of {command}"}
- {command: "^slow$", delay: 1h}
default: {stdout: "?", exit_code: 5}
`)
	put(t, d, "main.py", "print(17)")
	for _, c := range []struct {
		command, want string
		code          int
	}{
		{"first", "one", 0}, {"the first", "two", 0}, {"cat", "<in>", 0}, {"python3 main.py", "17 of python3 main.py", 0},
		{"python3 other.py", "?", 5}, {"sh -c first", "one", 0}, {"bash -l -c first", "one", 0}, {"sh first", "two", 0},
	} {
		if got, code := run(t, d, "in", strings.Fields(c.command)...); got != c.want || code != c.code {
			t.Errorf("%s: %q, %d", c.command, got, code)
		}
	}
	p, err := d.Exec(t.Context(), "sb", execution.ExecSpec{Command: []string{"slow"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Signal(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context()); code != 137 || err != nil {
		t.Errorf("a program that is killed while it waits: %d, %v", code, err)
	}
}

func TestRefusedStarts(t *testing.T) {
	d := sandbox(t, `answers:
- {command: "^none$", error: {exit_code: 127}}
- {command: "^full$", error: {class: resource_exhausted, message: too many}}
`)
	for command, class := range map[string]errs.Class{"none": errs.InvalidArgument, "full": errs.ResourceExhausted} {
		if _, err := d.Exec(t.Context(), "sb", execution.ExecSpec{Command: []string{command}}); !errs.Is(err, class) || class == errs.InvalidArgument && mock.ExitCode(err) != 127 {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestWrongAnswers(t *testing.T) {
	for text, want := range map[string]string{
		"answers: [{stdout: x}]":                        "answer 1 has neither",
		"answers: [{command: '('}]":                     "answer 1",
		"answers: [{command: a, exit_code: 256}]":       "exit_code",
		"answers: [{command: a, error: {class: away}}]": `class "away"`,
		"answer: []":            "answer",
		"default: {command: a}": "default",
		"answers: [{command: a}, {command: b, delay: -1s}]": "answer 2",
	} {
		if _, err := mock.ParseAnswers([]byte(text)); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCode(t *testing.T) {
	a := answers(t, `answers: [{code: "1/0", stderr: "ZeroDivisionError", exit_code: 1}, {code: wait, delay: 1h}]`)
	if r, err := a.Run(t.Context(), "x = 1/0"); r.ExitCode != 1 || r.Stderr != "ZeroDivisionError" || r.Stdout != "" || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := a.Run(ctx, "wait"); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// archive returns a tar archive with one file.
func archive(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(t *testing.T, d *mock.Driver, path, text string) {
	t.Helper()
	if err := write(t, d.Files("sb", sandboxfs.View{}), path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f sandboxfs.FS, path string, content []byte) error {
	t.Helper()
	w, err := f.Write(t.Context(), path, sandboxfs.WriteOptions{Parents: true})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err = w.Write(content); err == nil {
		_, err = w.Commit(t.Context())
	}
	return err
}

// TestFilesStayInside: neither a path nor a link nor an archive leads out of the
// directory of a sandbox, or of the roots of a view.
func TestFilesStayInside(t *testing.T) {
	d := sandbox(t, "")
	f := d.Files("sb", sandboxfs.View{})
	for _, target := range []string{"../../../../../../etc/passwd", "/etc/passwd"} {
		if err := f.Symlink(t.Context(), target, "link"); err != nil {
			t.Fatal(err)
		}
		if r, err := f.Read(t.Context(), "link", 0, 0); err == nil {
			r.Close()
			t.Errorf("a link to %s is followed", target)
		}
		if err := f.Remove(t.Context(), "link", false); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.Stat(t.Context(), "/../../../../etc/passwd"); !errs.Is(err, errs.NotFound) { // the sandbox has none
		t.Errorf("a path with ..: %v", err)
	}
	in := d.Files("sb", sandboxfs.View{Roots: []string{"/home/user/a"}})
	put(t, d, "a/b", "x")
	if _, err := in.Stat(t.Context(), "/home/user/a/b"); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"/home/user", "/home/user/ab", "/home/user/a/../b"} {
		if err := write(t, in, p, nil); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("%s, outside of the root: %v", p, err)
		}
	}
	x, err := f.Extract(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(x, bytes.NewReader(archive(t, "../../out")))
	if err := x.Finish(t.Context()); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("an archive with ..: %v", err)
	}
}

// TestFilesOfASnapshot: a sandbox that is made from a snapshot has its files, and
// keeps its own from then on.
func TestFilesOfASnapshot(t *testing.T) {
	d := sandbox(t, "")
	put(t, d, "kept", "1")
	if _, err := d.Snapshot(t.Context(), "sb", "snap", execution.SnapshotOptions{Leave: true}); err != nil {
		t.Fatal(err)
	}
	put(t, d, "kept", "2")
	if _, err := d.Ensure(t.Context(), execution.Spec{ID: "fork", Network: execution.NetworkNone, Restore: "snap"}); err != nil {
		t.Fatal(err)
	}
	r, err := d.Files("fork", sandboxfs.View{}).Read(t.Context(), "kept", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != "1" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	for _, err := range []error{d.Delete(t.Context(), "fork"), d.DeleteSnapshot(t.Context(), "snap")} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestWatch: changes below a directory are reported.
func TestWatch(t *testing.T) {
	d := sandbox(t, "")
	f := d.Files("sb", sandboxfs.View{})
	w, err := f.Watch(t.Context(), "/home/user", false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	put(t, d, "sub/ignored", "x")
	put(t, d, "seen", "x")
	put(t, d, "seen", "y")
	if err := f.Remove(t.Context(), "seen", false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []sandboxfs.Change{sandboxfs.Created, sandboxfs.Written, sandboxfs.Removed} {
		if e, err := w.Next(); err != nil || e.Change != want || e.Path != "seen" {
			t.Errorf("%+v, %v, want %s", e, err, want)
		}
	}
}
