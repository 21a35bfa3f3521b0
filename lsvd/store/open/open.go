// Package open turns a URL into an object store, the same way for every
// command and daemon:
//
//	/var/lib/disks, ./disks, file:///var/lib/disks
//	s3://BUCKET[/PREFIX][?PARAMETER=VALUE&...]
//
// Parameters of s3, all optional; the environment variables that hold without
// them are those of [s3.Config]:
//
//	endpoint=https://host:port   the server; without one, Amazon's
//	region=us-east-1
//	path_style=true|false        bucket in the path; default: true with an endpoint
//	ca=FILE                      certificates to trust besides the system's
//	credentials=FILE             in the format of ~/.aws/credentials
//	profile=NAME                 its section; default: default
//	plain_http=true              allow an http endpoint that is not on this machine
//	timeout=30s                  of one request
//
// A URL never holds a secret, so it may be stored and logged. One that has a
// user or a password in it is refused, as is an unknown parameter.
package open

import (
	"context"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// Location is a parsed URL.
type Location struct {
	Dir string     // a directory, absolute, or
	S3  *s3.Config // a bucket
}

// Store opens the store that rawURL names. A directory is made if it does not
// exist, a bucket is not.
func Store(ctx context.Context, rawURL string) (store.Store, error) {
	l, err := Parse(rawURL)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// Open opens the store that l names, as Store does.
func (l Location) Open(ctx context.Context) (store.Store, error) {
	if l.S3 != nil {
		return s3.Open(ctx, *l.S3)
	}
	return dirstore.Open(l.Dir)
}

// schemes are what a URL may begin with.
var schemes = []string{"file", "s3"}

// Parse checks a URL without touching what it names.
func Parse(rawURL string) (Location, error) {
	scheme, _, ok := strings.Cut(rawURL, "://")
	switch {
	case !ok && (strings.HasPrefix(rawURL, "/") || rawURL == "." || strings.HasPrefix(rawURL, "./") || strings.HasPrefix(rawURL, "../")):
		dir, err := filepath.Abs(rawURL)
		return Location{Dir: dir}, errs.Wrap(err, "store %s", rawURL)
	case !ok:
		err := errs.New(errs.InvalidArgument, "store %q is neither a path that begins with / or ./ nor a URL", rawURL)
		return Location{}, err.WithHint("write ./%s for a directory, s3://%s for a bucket", rawURL, rawURL)
	case scheme == "file":
		return parseFile(rawURL)
	case scheme == "s3":
		return parseS3(rawURL)
	}
	err := errs.New(errs.InvalidArgument, "there is no store %s://", scheme)
	if s := suggest.Nearest(scheme, schemes); s != "" {
		return Location{}, err.WithHint("did you mean %s://?", s)
	}
	return Location{}, err.WithHint("there are: a path, file:// and s3://")
}

func parseFile(rawURL string) (Location, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !strings.HasPrefix(u.Path, "/") {
		return Location{}, errs.New(errs.InvalidArgument, "store %q is not file:///path, without a host and parameters", rawURL).
			WithHint("three slashes: file:///var/lib/disks")
	}
	return Location{Dir: filepath.Clean(u.Path)}, nil
}

func parseS3(rawURL string) (Location, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The error would repeat the URL, and what may be a password in it.
		return Location{}, errs.New(errs.InvalidArgument, "store URL is malformed").WithHint("write s3://bucket/prefix?endpoint=https://host:port")
	}
	if u.User != nil {
		return Location{}, errs.New(errs.InvalidArgument, "store URL has credentials in it").
			WithHint("put them into a file and add credentials=FILE, or into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	if u.Host == "" || u.Port() != "" || u.Fragment != "" {
		return Location{}, errs.New(errs.InvalidArgument, "store %q does not name a bucket", rawURL).WithHint("write s3://bucket/prefix; the server goes into endpoint=")
	}
	c := &s3.Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Location{}, errs.New(errs.InvalidArgument, "parameters of store s3://%s are malformed", u.Host)
	}
	c.PathStyle = query.Has("endpoint") || os.Getenv("AWS_ENDPOINT_URL_S3") != "" || os.Getenv("AWS_ENDPOINT_URL") != ""
	params := s3Params(c)
	known := slices.Sorted(maps.Keys(params))
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := params[name]
		if !ok {
			err := errs.New(errs.InvalidArgument, "s3 stores have no parameter %q", name)
			if s := suggest.Nearest(name, known); s != "" {
				return Location{}, err.WithHint("did you mean %s?", s)
			}
			return Location{}, err.WithHint("there are: %s", strings.Join(known, ", "))
		}
		if len(query[name]) > 1 {
			return Location{}, errs.New(errs.InvalidArgument, "store s3://%s: %s is given twice", u.Host, name)
		}
		if query[name][0] == "" {
			return Location{}, errs.New(errs.InvalidArgument, "store s3://%s: %s has no value", u.Host, name)
		}
		if err := set(query[name][0]); err != nil {
			return Location{}, errs.Wrap(err, "store s3://%s: %s", u.Host, name)
		}
	}
	if err := c.Check(); err != nil {
		return Location{}, errs.Wrap(err, "store s3://%s", u.Host)
	}
	return Location{S3: c}, nil
}

// s3Params are the parameters and what they set.
func s3Params(c *s3.Config) map[string]func(string) error {
	text := func(p *string) func(string) error {
		return func(v string) error { *p = v; return nil }
	}
	file := func(p *string) func(string) error {
		return func(v string) (err error) {
			*p, err = filepath.Abs(v)
			return err
		}
	}
	truth := func(p *bool) func(string) error {
		return func(v string) error {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return errs.New(errs.InvalidArgument, "%q is neither true nor false", v)
			}
			*p = b
			return nil
		}
	}
	return map[string]func(string) error{
		"endpoint": text(&c.Endpoint), "region": text(&c.Region), "profile": text(&c.Profile),
		"ca": file(&c.CA), "credentials": file(&c.Credentials),
		"path_style": truth(&c.PathStyle), "plain_http": truth(&c.PlainHTTP),
		"timeout": func(v string) error {
			d, err := time.ParseDuration(v)
			if err != nil || d < time.Second || d > 10*time.Minute {
				return errs.New(errs.InvalidArgument, "%q is not a time from 1s to 10m", v)
			}
			c.Timeout = d
			return nil
		},
	}
}
