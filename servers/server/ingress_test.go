package server

import (
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestCause(t *testing.T) {
	ended := errs.New(errs.Unavailable, "it ended before it was ready")
	for _, c := range []struct{ hint, want string }{
		{"", "it ended before it was ready"},
		{"its log is /x; last lines:\nlevel=INFO msg=x", "it ended before it was ready"},
		{"its log is /x; last lines:\nerror: old\nerror: listen: in use\n  hint: choose another", "listen: in use; choose another"},
	} {
		if got := cause(ended.WithHint("%s", c.hint)); got != c.want {
			t.Errorf("%q: %q, want %q", c.hint, got, c.want)
		}
	}
}
