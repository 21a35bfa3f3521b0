package agent_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/wait"
)

// filesFixture is a sandbox with an empty directory that all may use.
type filesFixture struct {
	*fixture
	e   environment
	dir string
}

func withFiles(t *testing.T, test func(t *testing.T, f *filesFixture)) {
	everywhere(t, func(t *testing.T, e environment) {
		f := &filesFixture{newFixture(t, e, agent.GuestConfig{WorkDir: "/tmp"}), e, "/tmp/agent-files-" + fmt.Sprint(time.Now().UnixNano())}
		t.Cleanup(func() { os.RemoveAll(f.dir) }) // where the sandbox is a process
		if r := f.sh("mkdir -m 777 " + f.dir); r.code != 0 {
			t.Fatal(r)
		}
		test(t, f)
	})
}

func (f *filesFixture) files(v sandboxfs.View) *agent.Files { return f.conn.Files(v) }

func (f *filesFixture) put(x sandboxfs.FS, path string, content []byte, o sandboxfs.WriteOptions) (sandboxfs.Info, error) {
	f.t.Helper()
	w, err := x.Write(f.ctx(), path, o)
	if err != nil {
		return sandboxfs.Info{}, err
	}
	defer w.Close()
	if _, err := w.Write(content); err != nil {
		return sandboxfs.Info{}, err
	}
	return w.Commit(f.ctx())
}

func (f *filesFixture) get(x sandboxfs.FS, path string, offset, length int64) ([]byte, error) {
	f.t.Helper()
	r, err := x.Read(f.ctx(), path, offset, length)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func TestFileRoundTrip(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x := f.files(sandboxfs.View{User: "1234:1234"})
		path := f.dir + "/a/b/file"
		data := make([]byte, 3<<20+17)
		_, _ = rand.Read(data) // never fails
		if _, err := f.put(x, path, data, sandboxfs.WriteOptions{}); !errs.Is(err, errs.NotFound) {
			t.Errorf("without its directory: %v", err)
		}
		i, err := f.put(x, path, data, sandboxfs.WriteOptions{Parents: true, Perm: 0o640})
		if err != nil || i.Name != "file" || i.Size != int64(len(data)) || i.Mode != 0o640 || i.UID != 1234 || time.Since(i.ModTime).Abs() > wait.Limit {
			t.Errorf("written as %+v, %v", i, err)
		}
		for _, c := range []struct{ offset, length int64 }{{0, 0}, {0, 10}, {100, 70000}, {int64(len(data)) - 5, 0}, {int64(len(data)) - 5, 100}, {int64(len(data)) + 5, 0}} {
			end := int64(len(data))
			if c.length > 0 {
				end = min(end, c.offset+c.length)
			}
			want := data[min(c.offset, end):end]
			if got, err := f.get(x, path, c.offset, c.length); err != nil || !bytes.Equal(got, want) {
				t.Errorf("from %d, %d bytes: %d of %d, %v", c.offset, c.length, len(got), len(want), err)
			}
		}
		// A new file takes the place of the old one at once, with its permissions.
		w, err := x.Write(f.ctx(), path, sandboxfs.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "new"); err != nil {
			t.Fatal(err)
		}
		if got, err := f.get(x, path, 0, 3); err != nil || !bytes.Equal(got, data[:3]) {
			t.Errorf("while it is replaced: %q, %v", got, err)
		}
		if i, err = w.Commit(f.ctx()); err != nil || i.Mode != 0o640 {
			t.Errorf("replaced by %+v, %v", i, err)
		}
		w, err = x.Write(f.ctx(), path, sandboxfs.WriteOptions{})
		if err == nil {
			_, err = io.WriteString(w, "given up")
		}
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		wait.For(t, "nothing of it is left", func() bool {
			l, _, err := x.List(f.ctx(), f.dir+"/a/b", sandboxfs.ListOptions{})
			return err == nil && len(l) == 1
		})
		if _, err := f.put(x, path, []byte("x"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteCreate}); !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("create again: %v", err)
		}
		if _, err := f.put(x, path, []byte("XY"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteAt, Offset: 1}); err != nil {
			t.Error(err)
		}
		if _, err := f.put(x, path, []byte(" end"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteAppend}); err != nil {
			t.Error(err)
		}
		if got, err := f.get(x, path, 0, 0); err != nil || string(got) != "nXY end" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := f.put(x, f.dir+"/empty", nil, sandboxfs.WriteOptions{}); err != nil {
			t.Error(err)
		}
		if got, err := f.get(x, f.dir+"/empty", 0, 0); err != nil || len(got) != 0 {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestFileOperations(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x, at := f.files(sandboxfs.View{User: "1234"}), func(p string) string { return f.dir + "/" + p }
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		class := func(err error, want errs.Class) {
			t.Helper()
			if !errs.Is(err, want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		ctx := f.ctx()
		ok(x.Mkdir(ctx, at("d"), 0o750, false))
		class(x.Mkdir(ctx, at("d"), 0, false), errs.AlreadyExists)
		class(x.Mkdir(ctx, at("n/n"), 0, false), errs.NotFound)
		ok(x.Mkdir(ctx, at("d/e/f"), 0, true))
		ok(x.Mkdir(ctx, at("d/e/f"), 0, true))
		for _, n := range []string{"d/1", "d/2", "d/3", "d/e/4"} {
			_, err := f.put(x, at(n), []byte(n), sandboxfs.WriteOptions{})
			ok(err)
		}
		if r := f.exec(execution.ExecSpec{Command: []string{"ln", "-s", "1", at("d/link")}, User: "1234"}); r.code != 0 {
			t.Fatal(r)
		}
		if i, err := x.Stat(ctx, at("d")); err != nil || i.Mode != fs.ModeDir|0o750 || i.UID != 1234 || i.Name != "d" {
			t.Errorf("%+v, %v", i, err)
		}
		if i, err := x.Stat(ctx, at("d/link")); err != nil || i.Mode.Type() != fs.ModeSymlink || i.Target != "1" {
			t.Errorf("%+v, %v", i, err)
		}
		_, err := x.Stat(ctx, at("none"))
		class(err, errs.NotFound)
		if i, err := x.Stat(ctx, "/"); err != nil || !i.Mode.IsDir() {
			t.Errorf("%+v, %v", i, err)
		}
		list := func(path string) string {
			t.Helper()
			var names []string
			for after, more := "", true; more; {
				var l []sandboxfs.Info
				if l, more, err = x.List(ctx, path, sandboxfs.ListOptions{After: after, Limit: 2}); err != nil || len(l) > 2 {
					t.Fatalf("%+v, %v", l, err)
				}
				for _, i := range l {
					names, after = append(names, i.Name), i.Name
				}
			}
			return strings.Join(names, " ")
		}
		if got := list(at("d")); got != "1 2 3 e link" {
			t.Errorf("list: %s", got)
		}
		_, _, err = x.List(ctx, at("d/1"), sandboxfs.ListOptions{})
		class(err, errs.InvalidArgument)
		ok(x.Copy(ctx, at("d"), at("copy")))
		class(x.Copy(ctx, at("d"), at("copy")), errs.AlreadyExists)
		ok(x.Copy(ctx, at("d"), at("d/within")))
		if got := list(at("copy")) + "; " + list(at("copy/e")) + "; " + list(at("d/within")); got != "1 2 3 e link; 4 f; 1 2 3 e link" {
			t.Errorf("copied: %s", got)
		}
		if got, err := f.get(x, at("copy/e/4"), 0, 0); err != nil || string(got) != "d/e/4" {
			t.Errorf("%q, %v", got, err)
		}
		class(x.Move(ctx, at("d/1"), at("d/2"), false), errs.AlreadyExists)
		ok(x.Move(ctx, at("d/1"), at("d/2"), true))
		ok(x.Move(ctx, at("d/2"), at("moved"), false))
		if got, err := f.get(x, at("moved"), 0, 0); err != nil || string(got) != "d/1" {
			t.Errorf("%q, %v", got, err)
		}
		ok(x.Chmod(ctx, at("moved"), 0o100))
		if i, err := x.Stat(ctx, at("moved")); err != nil || i.Mode != 0o100 {
			t.Errorf("%+v, %v", i, err)
		}
		ok(x.Chmod(ctx, at("moved"), 0o600))
		ok(x.SetAttr(ctx, at("moved"), "origin", []byte("somewhere")))
		ok(x.SetAttr(ctx, at("moved"), "other", []byte("thing")))
		ok(x.SetAttr(ctx, at("moved"), "other", nil))
		ok(x.SetAttr(ctx, at("moved"), "empty", []byte{}))
		ok(x.SetAttr(ctx, at("copy"), "of", []byte("d")))
		attrs := map[string][]byte{"origin": []byte("somewhere"), "empty": {}}
		if a, err := x.Attrs(ctx, at("moved")); err != nil || !maps.EqualFunc(a, attrs, bytes.Equal) {
			t.Errorf("%q, %v", a, err)
		}
		ok(x.Copy(ctx, at("copy"), at("copied")))
		ok(x.Copy(ctx, at("moved"), at("copied/file")))
		for dir, want := range map[string]map[string]map[string][]byte{
			at(""):       {"copied": {"of": []byte("d")}, "copy": {"of": []byte("d")}, "d": nil, "moved": attrs},
			at("copied"): {"1": nil, "2": nil, "3": nil, "e": nil, "file": attrs, "link": nil},
		} {
			l, _, err := x.List(ctx, dir, sandboxfs.ListOptions{Attrs: true})
			if err != nil || len(l) != len(want) {
				t.Errorf("%+v, %v", l, err)
			}
			for _, i := range l {
				if !maps.EqualFunc(i.Attrs, want[i.Name], bytes.Equal) {
					t.Errorf("%s: %q, want %q", i.Name, i.Attrs, want[i.Name])
				}
			}
		}
		// A list ends early where attributes fill the answer. Some file systems of a host
		// keep no attribute of this size.
		for _, n := range []string{"1", "2", "3"} {
			err = errors.Join(err, x.SetAttr(ctx, at("copied/"+n), "big", make([]byte, 32<<10)), x.SetAttr(ctx, at("copied/"+n), "more", make([]byte, 31<<10)))
		}
		if !errs.Is(err, errs.ResourceExhausted) {
			ok(err)
			l, more, err := x.List(ctx, at("copied"), sandboxfs.ListOptions{Attrs: true})
			if err != nil || len(l) >= 3 || !more || len(l[0].Attrs["more"]) != 31<<10 {
				t.Errorf("%d entries, more: %v, %v", len(l), more, err)
			}
		}
		class(x.SetAttr(ctx, at("moved"), strings.Repeat("n", 201), []byte("v")), errs.InvalidArgument)
		class(x.SetAttr(ctx, at("moved"), "n", make([]byte, 32<<10+1)), errs.InvalidArgument)
		ok(x.Remove(ctx, at("copied"), true))
		class(x.Remove(ctx, at("d"), false), errs.FailedPrecondition)
		ok(x.Remove(ctx, at("d"), true))
		class(x.Remove(ctx, at("d"), true), errs.NotFound)
		ok(x.Remove(ctx, at("moved"), false))
		if got := list(f.dir); got != "copy" {
			t.Errorf("left: %s", got)
		}
		// A relative path is below the working directory, which is /tmp.
		rel := strings.TrimPrefix(f.dir, "/tmp/")
		ok(x.Move(ctx, rel+"/copy", rel+"/again", false))
		ok(x.Copy(ctx, at("again"), rel+"/copy"))
		if got := list(rel); got != "again copy" {
			t.Errorf("by a relative path: %s", got)
		}
		_, err = f.files(sandboxfs.View{Roots: []string{"/tmp"}}).Stat(ctx, "../etc")
		class(err, errs.PermissionDenied)
		for _, bad := range []string{"", "a\x00b", "/a\x00b"} {
			_, err := x.Stat(ctx, bad)
			class(err, errs.InvalidArgument)
		}
		_, err = f.files(sandboxfs.View{User: "nobody-knows"}).Stat(ctx, "/")
		class(err, errs.InvalidArgument)
	})
}

// Links, times and sizes are those of a process of the user.
func TestLinksTimesAndSizes(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x, at := f.files(sandboxfs.View{User: "1234"}), func(p string) string { return f.dir + "/" + p }
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		class := func(err error, want errs.Class) {
			t.Helper()
			if !errs.Is(err, want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		ctx := f.ctx()
		ok(x.Mkdir(ctx, at("e"), 0, false))
		for name, content := range map[string]string{"3": "one", "two": "two"} {
			ok(second(f.put(x, at(name), []byte(content), sandboxfs.WriteOptions{})))
		}
		ok(x.Symlink(ctx, "../nowhere", at("text")))
		class(x.Symlink(ctx, "x", at("text")), errs.AlreadyExists)
		class(x.Symlink(ctx, "", at("empty")), errs.InvalidArgument)
		class(x.Symlink(ctx, "a\x00b", at("zero")), errs.InvalidArgument)
		if i, err := x.Stat(ctx, at("text")); err != nil || i.Mode.Type() != fs.ModeSymlink || i.Target != "../nowhere" || i.UID != 1234 {
			t.Errorf("%+v, %v", i, err)
		}
		ok(x.Link(ctx, at("3"), at("hard")))
		class(x.Link(ctx, at("3"), at("two")), errs.AlreadyExists)
		class(x.Link(ctx, at("none"), at("other")), errs.NotFound)
		ok(x.Truncate(ctx, at("hard"), 5))
		if got, err := f.get(x, at("3"), 0, 0); err != nil || string(got) != "one\x00\x00" {
			t.Errorf("%q, %v", got, err)
		}
		ok(x.Truncate(ctx, at("3"), 1))
		if got, err := f.get(x, at("hard"), 0, 0); err != nil || string(got) != "o" {
			t.Errorf("%q, %v", got, err)
		}
		class(x.Truncate(ctx, at("3"), -1), errs.InvalidArgument)
		class(x.Truncate(ctx, at(""), 0), errs.InvalidArgument)
		class(x.Truncate(ctx, at("none"), 0), errs.NotFound)
		then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		ok(x.Symlink(ctx, "3", at("to3")))
		ok(x.Chtimes(ctx, at("to3"), then.Add(time.Hour), then)) // of the file that the link leads to
		ok(x.Chtimes(ctx, at("e"), then, then))
		for _, n := range []string{"3", "hard", "e"} {
			if i, err := x.Stat(ctx, at(n)); err != nil || !i.ModTime.Equal(then) {
				t.Errorf("%s: %+v, %v", n, i, err)
			}
		}
		if r := f.sh("stat -c %X " + at("3")); r.out != fmt.Sprintln(then.Add(time.Hour).Unix()) {
			t.Errorf("%+v", r)
		}
		ok(x.Chmod(ctx, at("3"), 0o200))
		ok(x.Chtimes(ctx, at("3"), then, then.Add(time.Minute))) // its owner may not read it
		if i, err := x.Stat(ctx, at("3")); err != nil || !i.ModTime.Equal(then.Add(time.Minute)) {
			t.Errorf("%+v, %v", i, err)
		}
		class(x.Chtimes(ctx, at("3"), then, time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)), errs.InvalidArgument)
		if s, err := x.Space(ctx, at("")); err != nil || s.Bytes <= 0 || s.FreeBytes <= 0 || s.FreeBytes > s.Bytes {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// File calls have the rights of their user, and no trick reaches a file outside the roots.
func TestFilesAreConfined(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		script := `cd ` + f.dir + ` && mkdir -m 777 in out secret && echo hidden >out/file && echo private >secret/file && chmod 700 secret &&
			ln -s ../out in/up && ln -s ` + f.dir + `/out in/abs && ln -s ../out/file in/uplink && ln -s /proc/self/mem in/mem && ln -s /proc/self/fd in/fds &&
			ln -s loop in/loop && echo ok >in/file && ln -s file in/same && mkdir in/sub && ln -s ../file in/sub/back && chmod 777 in/sub && mkfifo in/pipe && chmod 666 in/file in/pipe`
		if r := f.sh(script); r.code != 0 {
			t.Fatal(r)
		}
		denied := func(what string, err error) {
			t.Helper()
			if !errs.Is(err, errs.PermissionDenied) {
				t.Errorf("%s: %v", what, err)
			}
		}
		all := f.files(sandboxfs.View{User: "1234:1234"})
		root := f.files(sandboxfs.View{User: "1234:1234", Roots: []string{f.dir + "/in", f.dir + "/none"}})
		ctx := f.ctx()
		_, err := f.get(all, f.dir+"/secret/file", 0, 0)
		denied("a file of another user", err)
		_, err = f.put(all, "/etc/passwd", []byte("x"), sandboxfs.WriteOptions{})
		denied("a file of root", err)
		_, err = f.put(all, "/etc/passwd", []byte("x"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteAppend})
		denied("a file of root that is continued", err)
		denied("a directory of root", all.Mkdir(ctx, "/etc/new", 0, false))
		denied("the mode of a file of another user", all.Chmod(ctx, f.dir+"/out/file", 0o777))
		for _, p := range []string{"/run/runtime/agent/config", "/run/runtime/log/exit"} {
			if _, err := f.get(all, p, 0, 0); !errs.Is(err, errs.PermissionDenied) && !(f.e.name == "process" && errs.Is(err, errs.NotFound)) {
				t.Errorf("%s: %v", p, err)
			}
		}
		for _, p := range []string{"/proc/self/mem", "/proc/self/environ", "/proc/1/maps", f.dir + "/in/mem", f.dir + "/in/fds/0", "/proc/self/fd/1", "/proc/self/root/etc/passwd", "/proc/thread-self/cwd/x"} {
			_, err := f.get(all, p, 0, 0)
			denied("read "+p, err)
			_, err = f.put(all, p, []byte("x"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteAt})
			if !errs.Is(err, errs.PermissionDenied) && !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("write %s: %v", p, err)
			}
		}
		for _, p := range []string{"/out/file", "/in/../out/file", "/in/up/file", "/in/abs/file", "/in/uplink", "/in/mem", "/in/fds/0", "/in/up/../../secret/file", "/inside", "/in/loop"} {
			_, err := f.get(root, f.dir+p, 0, 0)
			denied("read "+p, err)
			_, err = f.put(root, f.dir+p, []byte("x"), sandboxfs.WriteOptions{Mode: sandboxfs.WriteAppend})
			denied("append to "+p, err)
		}
		for _, p := range []string{"/out/file", "/in/../out/file", "/in/up/file", "/in/abs/file", "/in/uplink"} {
			if got, err := f.get(all, f.dir+p, 0, 0); err != nil || string(got) != "hidden\n" {
				t.Errorf("without roots %s: %q, %v", p, got, err)
			}
		}
		for _, p := range []string{"/out/new", "/in/up/new", "/in/abs/new", "/in/../new"} {
			_, err := f.put(root, f.dir+p, []byte("x"), sandboxfs.WriteOptions{Parents: true})
			denied("write "+p, err)
			denied("make "+p, root.Mkdir(ctx, f.dir+p, 0, true))
			denied("copy to "+p, root.Copy(ctx, f.dir+"/in/file", f.dir+p))
			denied("move to "+p, root.Move(ctx, f.dir+"/in/file", f.dir+p, true))
			_, _, err = root.List(ctx, f.dir+p+"/..", sandboxfs.ListOptions{})
			denied("list above "+p, errors.Join(err))
		}
		denied("remove a root", root.Remove(ctx, f.dir+"/in", true))
		denied("remove through a link", root.Remove(ctx, f.dir+"/in/up/file", true))
		denied("mode through a link", root.Chmod(ctx, f.dir+"/in/uplink", 0o777))
		now := time.Now()
		denied("times through a link", root.Chtimes(ctx, f.dir+"/in/uplink", now, now))
		denied("size through a link", root.Truncate(ctx, f.dir+"/in/uplink", 0))
		denied("room through a link", second(root.Space(ctx, f.dir+"/in/up")))
		denied("another name of a file outside", root.Link(ctx, f.dir+"/out/file", f.dir+"/in/stolen"))
		denied("another name of a file outside, through a link", root.Link(ctx, f.dir+"/in/up/file", f.dir+"/in/stolen"))
		denied("another name outside", root.Link(ctx, f.dir+"/in/file", f.dir+"/in/up/given"))
		denied("a link outside", root.Symlink(ctx, "x", f.dir+"/in/up/given"))
		denied("the times of a file of another user", all.Chtimes(ctx, "/etc/passwd", now, now))
		denied("the size of a file of root", all.Truncate(ctx, "/etc/passwd", 0))
		denied("another name of a file of another user", all.Link(ctx, f.dir+"/secret/file", f.dir+"/in/stolen"))
		// Calls that do not open a file apply to a link itself.
		if i, err := root.Stat(ctx, f.dir+"/in/uplink"); err != nil || i.Mode.Type() != fs.ModeSymlink {
			t.Errorf("%+v %v", i, err)
		}
		if i, err := root.Stat(ctx, f.dir+"/in"); err != nil || !i.Mode.IsDir() {
			t.Errorf("the root: %+v %v", i, err)
		}
		for _, p := range []string{"/in/file", "/in/same", "/in/sub/back", "/in/sub/../file"} {
			if got, err := f.get(root, f.dir+p, 0, 0); err != nil || string(got) != "ok\n" {
				t.Errorf("%s: %q, %v", p, got, err)
			}
		}
		for _, p := range []string{"/in/pipe", "/in/sub"} { // does not wait
			if _, err := f.get(root, f.dir+p, 0, 0); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("%s: %v", p, err)
			}
		}
		if r := f.sh("cat " + f.dir + "/out/file; ls " + f.dir + "/out"); r.out != "hidden\nfile\n" {
			t.Errorf("outside the roots: %q", r.out)
		}
		f.files(sandboxfs.View{User: "root"})
		if _, err := f.get(f.files(sandboxfs.View{}), f.dir+"/secret/file", 0, 0); err != nil {
			t.Errorf("root: %v", err)
		}
	})
}

// A process of the user cannot stop the agent by the thread that works for it.
func TestFileThreadsAreProtected(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Claimable: true, PIDs: 100})
	x := f.conn.Files(sandboxfs.View{User: "app"})
	for range 8 { // several threads
		if _, err := x.Stat(f.ctx(), "/tmp"); err != nil {
			t.Fatal(err)
		}
	}
	r := f.exec(execution.ExecSpec{Command: []string{"/bin/bash", "-c", "for t in /proc/1/task/*; do kill -9 ${t##*/} 2>/dev/null && echo killed; done; true"}, User: "app"})
	if r.out != "" || r.code != 0 {
		t.Errorf("%+v", r)
	}
	// A claim gives all threads their capabilities, which those of files give up again.
	if err := f.conn.Configure(f.ctx(), execution.Identity{Claim: "c", Hostname: "h"}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "no thread may administer", func() bool {
		return f.sh("grep -h CapPrm /proc/1/task/*/status | sort -u").out == "CapPrm:\t00000000000000e3\n"
	})
	if _, _, err := x.List(f.ctx(), "/root", sandboxfs.ListOptions{}); err == nil {
		if r := f.sh("stat -c %a /root"); r.code == 0 {
			t.Errorf("reads /root, %s", r.out)
		}
	}
	f.sh("mkdir -m 700 /tmp/private; echo x >/tmp/private/file")
	if _, err := x.Read(f.ctx(), "/tmp/private/file", 0, 0); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("after the claim: %v", err)
	}
}
