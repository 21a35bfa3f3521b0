package host

import (
	"cmp"
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/open"
	"miren.dev/runtime/pkg/errs"
)

// tested has the canonical URLs of the stores that this process has found to keep
// their contract.
var tested sync.Map

// OpenStore opens the store that a URL or path names, and returns the URL in a
// form that does not depend on the working directory. It tests a server once in the
// life of the process.
func OpenStore(ctx context.Context, rawURL string) (store.Store, string, error) {
	canonical, err := StoreURL(rawURL)
	if err != nil {
		return nil, "", err
	}
	l, err := open.Parse(canonical)
	if err != nil {
		return nil, "", err
	}
	if l.S3 != nil {
		_, l.S3.Tested = tested.Load(canonical)
	}
	st, err := l.Open(ctx)
	if err == nil {
		tested.Store(canonical, true)
	}
	return st, canonical, err
}

// StoreURL checks a URL or path of a store, and makes the paths in it absolute.
func StoreURL(rawURL string) (string, error) {
	l, err := open.Parse(rawURL)
	if err != nil {
		return "", err
	}
	if l.Dir != "" {
		return (&url.URL{Scheme: "file", Path: l.Dir}).String(), nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "store URL is malformed")
	}
	q := u.Query()
	for _, k := range []string{"ca", "credentials"} {
		if v := q.Get(k); v != "" {
			abs, err := filepath.Abs(v)
			if err != nil {
				return "", errs.Wrap(err, "store URL")
			}
			q.Set(k, abs)
		}
	}
	u.RawQuery = q.Encode() // sorted
	return u.String(), nil
}

// storeName is what of a canonical URL says which store it is; the rest says
// how to reach it.
func storeName(canonical string) string {
	u, err := url.Parse(canonical)
	if err != nil || u.Scheme != "s3" {
		return canonical
	}
	return "s3://" + u.Host + "/" + strings.Trim(u.Path, "/") + "@" + cmp.Or(u.Query().Get("endpoint"), "default")
}
