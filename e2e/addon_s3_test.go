package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// objects returns the keys of the album's objects.
func (s *server) objects(app string) ([]string, error) {
	code, body, err := s.get(app, "/")
	if err != nil || code != 200 {
		return nil, fmt.Errorf("status %d %s %w", code, body, err)
	}
	return strings.Split(body, ","), nil
}

// TestObjectStoreOfAnApp deploys an app whose app.toml asks for an object store. It writes and reads objects with the
// library of Amazon S3, in parts and by a signed address too. A rotation of the credentials loses no request. Objects
// survive the store's sandbox being killed, and a backup that is restored has exactly those of its time.
func TestObjectStoreOfAnApp(t *testing.T) {
	t.Parallel()
	const name, files = "album", "album-files"
	s := own(t, "s3addon")
	dir := copyDir(t, filepath.Join("testdata/addons", name))
	s.r(t, dir, "app", "deploy")
	s.post(t, name, "first")
	s.answers(t, name, "/first", "first")
	s.answers(t, name, "/multipart", "12582912 bytes")
	s.answers(t, name, "/presigned", "first")

	ls := func() result {
		return s.try(t, "", "addon", "console", files, "--", "ls", "s3://app")
	}
	if res := ls(); res.Code != 0 || !strings.Contains(res.Stdout, "s3://app/first") {
		t.Errorf("console: %s", res)
	}

	t.Run("rotate", func(t *testing.T) {
		old := s.variable(t, name, "AWS_SECRET_ACCESS_KEY")
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			defer close(failed)
			for i := 0; ctx.Err() == nil; i++ {
				if err := s.tryPost(context.WithoutCancel(ctx), name, fmt.Sprint("rotating", i%10)); err != nil {
					failed <- err
					return
				}
			}
		}()
		s.r(t, "", "addon", "rotate", files)
		stop()
		if err := <-failed; err != nil {
			t.Errorf("during the rotation: %v", err)
		}
		if now := s.variable(t, name, "AWS_ACCESS_KEY_ID"); now != "app_2" {
			t.Errorf("the app has the user %s", now)
		}
		list := func(user, secret string) result {
			return s.try(t, "", "addon", "console", files, "--", "--access_key="+user, "--secret_key="+secret, "ls", "s3://app")
		}
		if res := list("app_1", old); res.Code == 0 {
			t.Errorf("the old credentials work: %s", res)
		}
		if res := list("app_2", s.variable(t, name, "AWS_SECRET_ACCESS_KEY")); res.Code != 0 {
			t.Errorf("the new credentials: %s", res)
		}
	})

	t.Run("killed", func(t *testing.T) {
		want, err := s.objects(name)
		if err != nil {
			t.Fatal(err)
		}
		before := s.sandboxes(t, files)
		kill(t, processOf(t, "runsc-sandbox", before[0]))
		wait.NoError(t, "the addon has its objects again", func() error {
			got, err := s.objects(name)
			if now := s.sandboxes(t, files); err == nil && (len(now) != 1 || now[0] == before[0] || !slices.Equal(got, want)) {
				err = fmt.Errorf("sandboxes %v, objects %v, want %v", now, got, want)
			}
			return err
		}, wait.Within(2*time.Minute))
		s.answers(t, name, "/presigned", "first")
	})

	t.Run("restore", func(t *testing.T) {
		s.restoresInPlace(t, name, files, s.objects)
		s.answers(t, name, "/presigned", "first")
	})

	s.deletesAddon(t, name, files)
}
