package host

import (
	"context"
	"path/filepath"
	"strings"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// OpenStore opens the store that a URL or path names, and returns the form of
// the URL that does not depend on the working directory.
func OpenStore(_ context.Context, url string) (store.Store, string, error) {
	path := strings.TrimPrefix(url, "file://")
	if strings.Contains(path, "://") {
		return nil, "", errs.New(errs.InvalidArgument, "store %q is neither a directory nor a file:// URL", url)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, "", errs.Wrap(err, "store %s", url)
	}
	st, err := store.OpenDir(path)
	return st, "file://" + path, err
}
