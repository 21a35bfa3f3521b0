package agent_test

import (
	"io"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/wait"
)

func TestWatch(t *testing.T) {
	withFiles(t, func(t *testing.T, f *filesFixture) {
		x := f.files(sandboxfs.View{User: "1234"})
		as := func(script string) {
			t.Helper()
			r := f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", "cd " + f.dir + " && " + script}, User: "1234"})
			if r.code != 0 {
				t.Fatal(r)
			}
		}
		as("mkdir -p d/sub d/old out && echo x >d/old/file")
		w, err := x.Watch(f.ctx(), f.dir+"/d", true)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		events := make(chan sandboxfs.Event, 100)
		ended := make(chan error, 1)
		go func() {
			for {
				e, err := w.Next()
				if err != nil {
					ended <- err
					return
				}
				events <- e
			}
		}()
		expect := func(script string, want ...sandboxfs.Event) {
			t.Helper()
			as(script)
			for _, e := range want {
				for got := (sandboxfs.Event{}); got != e; {
					got = wait.Receive(t, string(e.Change)+" "+e.Path+" after "+script, events)
				}
			}
		}
		expect("echo x >d/new", sandboxfs.Event{Change: "created", Path: "new"}, sandboxfs.Event{Change: "written", Path: "new"})
		expect("echo y >>d/sub/deep", sandboxfs.Event{Change: "created", Path: "sub/deep"}, sandboxfs.Event{Change: "written", Path: "sub/deep"})
		expect("chmod 600 d/new", sandboxfs.Event{Change: "attributes", Path: "new"})
		expect("mkdir -p d/a/b/c && echo x >d/a/b/c/file", sandboxfs.Event{Change: "created", Path: "a", Dir: true}, sandboxfs.Event{Change: "created", Path: "a/b/c/file"})
		expect("echo x >>d/a/b/c/file", sandboxfs.Event{Change: "written", Path: "a/b/c/file"})
		expect("rm d/new", sandboxfs.Event{Change: "removed", Path: "new"})
		expect("mv d/a out/a", sandboxfs.Event{Change: "removed", Path: "a", Dir: true})
		as("echo x >out/a/b/c/file2")
		expect("mv out/a d/back", sandboxfs.Event{Change: "created", Path: "back", Dir: true}, sandboxfs.Event{Change: "created", Path: "back/b/c/file2"})
		expect("rm -r d", sandboxfs.Event{Change: "removed", Path: ".", Dir: true})
		if err := wait.Receive(t, "the end of the watch", ended); err != io.EOF {
			t.Errorf("the directory is gone: %v", err)
		}
		if w, err = x.Watch(f.ctx(), f.dir, false); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				if _, err := w.Next(); err != nil {
					ended <- err
					return
				}
			}
		}()
		w.Close()
		if err := wait.Receive(t, "the end of the watch", ended); err == nil || err == io.EOF {
			t.Errorf("a closed watch: %v", err)
		}
		as("mkdir -m 000 closed; touch file; ln -s / link")
		for path, class := range map[string]errs.Class{"/none": errs.NotFound, "/file": errs.InvalidArgument} {
			if _, err := x.Watch(f.ctx(), f.dir+path, false); !errs.Is(err, class) {
				t.Errorf("%s: %v", path, err)
			}
		}
		if _, err := x.Watch(f.ctx(), f.dir+"/closed", false); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("%v", err)
		}
		root := f.files(sandboxfs.View{User: "1234", Roots: []string{f.dir}})
		if _, err := root.Watch(f.ctx(), f.dir+"/link/etc", true); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("outside the roots: %v", err)
		}
	})
}
