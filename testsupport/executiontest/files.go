package executiontest

import (
	"bytes"
	"io"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/wait"
)

// testFiles tests the driver's way to the files of a sandbox; components/agent tests the files.
func testFiles(t *testing.T, e *Env) {
	d, ok := e.Driver.(execution.FileDriver)
	if !ok {
		return // the fake has no files
	}
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("files")
		s.Idle, s.DiskBytes, s.User = true, 16<<20, "app"
		e.Start(t, s)
		f := d.Files(s.ID, sandboxfs.View{})
		put := func(path string, content []byte) error {
			w, err := f.Write(t.Context(), path, sandboxfs.WriteOptions{})
			if err != nil {
				return err
			}
			defer w.Close()
			if _, err := w.Write(content); err != nil {
				return err
			}
			_, err = w.Commit(t.Context())
			return err
		}
		if err := put("/home/app/small", []byte("content")); err != nil {
			t.Fatal(err)
		}
		if out := e.Output(t, s.ID, guest("read", "/home/app/small")); out != "content" {
			t.Errorf("in the sandbox: %q", out)
		}
		r, err := f.Read(t.Context(), "/home/app/small", 3, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if b, err := io.ReadAll(r); string(b) != "tent" || err != nil || r.Info().Size != 7 || r.Info().UID != 1000 {
			t.Errorf("%q of %+v, %v", b, r.Info(), err)
		}
		if err := put("/etc/hosts", nil); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("a file of root: %v", err)
		}
		if e.Lacks.SoftDisk {
			return
		}
		if err := put("/home/app/big", bytes.Repeat([]byte("0123456789abcdef"), 2<<20)); !errs.Is(err, errs.ResourceExhausted) {
			t.Errorf("32 of 16 MiB: %v", err)
		}
		wait.For(t, "the room is free again", func() bool { return put("/home/app/medium", make([]byte, 4<<20)) == nil })
		if l, more, err := f.List(t.Context(), "/home/app", sandboxfs.ListOptions{}); len(l) != 2 || more || err != nil {
			t.Errorf("%+v, %v, %v", l, more, err)
		}
		if _, err := d.Files("unknown", sandboxfs.View{}).Stat(t.Context(), "/"); !errs.Is(err, errs.NotFound) {
			t.Errorf("of no sandbox: %v", err)
		}
	})
}
