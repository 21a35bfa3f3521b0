package server

import (
	"fmt"
	"slices"
	"testing"

	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/pkg/errs"
)

// TestObjects keeps objects in a directory and in a bucket that another
// installation uses too.
func TestObjects(t *testing.T) {
	for name, url := range map[string]func(*testing.T) string{
		"directory": func(t *testing.T) string { return t.TempDir() },
		"versitygw": func(t *testing.T) string {
			s := s3test.Start(t, "versitygw")
			return fmt.Sprintf("s3://bucket/results?endpoint=%s&credentials=%s", s.URL, s.Credentials)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := url(t)
			var all [2]*objects
			for i := range all {
				o, err := newObjects(at, fmt.Sprintf("inst%d", i), nil)
				if err != nil {
					t.Fatal(err)
				}
				all[i] = o
				for _, key := range []string{"20260102/exec-b/n/request", "20260101/exec-a/n/output-1"} {
					if err := o.Create(t.Context(), key, []byte(fmt.Sprintf("%d %s", i, key))); err != nil {
						t.Fatal(err)
					}
				}
			}
			o := all[0]
			if err := o.Create(t.Context(), "20260102/exec-b/n/request", nil); !errs.Is(err, errs.AlreadyExists) {
				t.Errorf("created twice: %v", err)
			}
			if b, err := o.Get(t.Context(), "20260101/exec-a/n/output-1"); err != nil || string(b) != "0 20260101/exec-a/n/output-1" {
				t.Errorf("%q, %v", b, err)
			}
			if err := o.Delete(t.Context(), "20260101/exec-a/n/output-1"); err != nil {
				t.Error(err)
			}
			if _, err := o.Get(t.Context(), "20260101/exec-a/n/output-1"); !errs.Is(err, errs.NotFound) {
				t.Errorf("deleted: %v", err)
			}
			for i, want := range [][]string{{"20260102/exec-b/n/request"}, {"20260101/exec-a/n/output-1", "20260102/exec-b/n/request"}} {
				var keys []string
				for o, err := range all[i].List(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					if o.Size != int64(len(o.Key)+2) {
						t.Errorf("%s has %d bytes", o.Key, o.Size)
					}
					keys = append(keys, o.Key)
				}
				if !slices.Equal(keys, want) {
					t.Errorf("installation %d has %v, want %v", i, keys, want)
				}
			}
		})
	}
	if _, err := newObjects("ftp://x", "inst", nil); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a store that does not exist: %v", err)
	}
}
