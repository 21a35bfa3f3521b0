package rpcserver_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
)

// Outputs are sent when the program has ended, whatever its exit code, and one
// that is missing does not keep the others.
func TestRunOnceSendsOutputs(t *testing.T) {
	e := newEnv(t)
	e.must(os.WriteFile(filepath.Join(e.files, "result"), []byte("42"), 0o640))
	e.must(os.Mkdir(filepath.Join(e.files, "dir"), 0o755))
	e.must(os.WriteFile(filepath.Join(e.files, "dir", "inside"), []byte("text"), 0o644))
	st := e.once(e.ctx(), func(r *sandbox.RunOnceRequest) { r.Outputs = []string{"result", "none", "dir"} }, "exit", "3")
	e.place(e.only())
	msgs, err := all(st)
	e.must(err)
	var data [3][]byte
	var info [3]*sandbox.FileInfo
	var errs [3]string
	for i, m := range msgs {
		if m.ExitCode != nil && i != len(msgs)-1 {
			t.Error("the exit code is not the last message")
		}
		if d := m.Output; d != nil {
			data[d.Index] = append(data[d.Index], d.Data...)
			errs[d.Index] += d.Error
			if d.Info != nil {
				info[d.Index] = d.Info
			}
		}
	}
	if string(data[0]) != "42" || info[0] == nil || info[0].Mode != 0o640 || errs[0] != "" {
		t.Errorf("%q %+v %s", data[0], info[0], errs[0])
	}
	if info[1] != nil || !strings.Contains(errs[1], "no such file") {
		t.Errorf("%+v %s", info[1], errs[1])
	}
	if info[2] == nil || info[2].Type != sandbox.FileTypeDirectory {
		t.Fatalf("%+v %s", info[2], errs[2])
	}
	if h, err := tar.NewReader(bytes.NewReader(data[2])).Next(); err != nil || h.Name != "inside" {
		t.Errorf("%+v, %v", h, err)
	}
	e.none()
}
