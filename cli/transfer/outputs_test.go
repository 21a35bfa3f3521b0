package transfer

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

func TestOutputs(t *testing.T) {
	info := &sandbox.FileInfo{Type: sandbox.FileTypeFile, Mode: 0o644}
	for name, c := range map[string]struct {
		parts  []sandbox.OutputData
		code   int
		err    error
		want   map[string]string // files that are saved
		exit   int
		report string
	}{
		"all": {
			parts: []sandbox.OutputData{{Info: info}, {Data: []byte("A")}, {Data: []byte("a")}, {Index: 1, Info: info}},
			code:  3, want: map[string]string{"a": "Aa", "b": ""}, exit: 3,
		},
		"one is missing": {
			parts: []sandbox.OutputData{{Info: info}, {Data: []byte("A")}, {Index: 1, Error: "no such file"}},
			want:  map[string]string{"a": "A"}, exit: exit.Failed, report: "output /tmp/b: no such file",
		},
		"one breaks off": {
			parts: []sandbox.OutputData{{Info: info}, {Data: []byte("A")}, {Error: "the sandbox has ended"}, {Index: 1, Info: info}, {Index: 1, Data: []byte("B")}},
			want:  map[string]string{"b": "B"}, exit: exit.Failed, report: "output a: the sandbox has ended",
		},
		"the call breaks off": {
			parts: []sandbox.OutputData{{Info: info}, {Data: []byte("A")}}, err: errs.New(errs.Unavailable, "the server is gone"),
		},
		"not asked for": {parts: []sandbox.OutputData{{Index: 7, Info: info}, {Index: -1, Data: []byte("x")}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := NewOutputs([]string{"a:" + dir, "/tmp/b:" + dir + "/"})
			for i := range c.parts {
				o.Receive(&c.parts[i])
			}
			var errw bytes.Buffer
			code, err := o.Finish(&console.Console{Out: io.Discard, Err: &errw}, c.code, c.err)
			if code != c.exit || err != c.err || !strings.Contains(errw.String(), c.report) {
				t.Errorf("%d, %v, %q", code, err, errw.String())
			}
			got := map[string]string{}
			left, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range left {
				b, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					t.Error(err)
				}
				got[e.Name()] = string(b)
			}
			if len(got) != len(c.want) {
				t.Errorf("saved %q, want %q", got, c.want)
			}
			for name, text := range c.want {
				if got[name] != text {
					t.Errorf("%s: %q", name, got[name])
				}
			}
		})
	}
}
