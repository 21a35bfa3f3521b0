package build

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
)

// TestBaseImagesAreSteps: the log of a build has steps for its base images, numbered
// before those of the builder, and a failure ends the running step.
func TestBaseImagesAreSteps(t *testing.T) {
	for _, tc := range []struct {
		noBase error
		want   []string
	}{
		{nil, []string{
			"started 1 making base image base 1.2.3", "done 1 making base image base 1.2.3",
			"started 2 base: writing the image", "done 2 base: writing the image", "started 3 [1/1] RUN make",
		}},
		{errs.New(errs.FailedPrecondition, "no packages"), []string{
			"started 1 making base image base 1.2.3", "done 1 making base image base 1.2.3",
			"started 2 base: writing the image", "failed 2 base: writing the image no packages",
		}},
	} {
		f := setup(t)
		f.dockerfile, f.noBase = "FROM base\nRUN make\nCMD [\"/x\"]\n", tc.noBase
		f.do = func(context.Context, int64) error { return nil }
		b, want := f.build(), app.BuildPhaseSucceeded
		if tc.noBase != nil {
			want = app.BuildPhaseFailed
		}
		f.reconcile(f.reconciler(), b)
		f.phase(b, want)
		var got []string
		if err := f.logs.Read(t.Context(), string(b.ID), 0, false, func(e buildlog.Event, _ int64) error {
			if e.Step > 0 {
				got = append(got, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Step, " ", e.Name, " ", e.Text)))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
