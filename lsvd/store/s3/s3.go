// Package s3 is the object store over S3 and servers that speak it.
//
// # Requirements
//
// The store's contract stands on conditional writes: Create is PutObject with
// If-None-Match: *, Replace is PutObject with If-Match and the ETag that the
// object had, and a [store.Version] is an ETag. Servers that do not know these
// headers ignore them and overwrite, so [Open] tries them with an object of its
// own and refuses a server that does not honour them.
//
// # Outcomes
//
// A call sends a conditional write once unless the server refused it. Neither
// the SDK nor this package repeats it without that answer: the repetition of a
// write that went through would answer 412, and a success would look like a
// conflict. A write or deletion that is answered with AccessDenied is tried
// again for a moment, for the answer may be of the moment: rights take seconds
// to be known to all of a large service, and MinIO, where objects are files,
// says so of an object whose directory another deletion is taking away. Reads
// and listings change nothing and are repeated. What an answer means:
//
//	404 NoSuchKey                     NotFound
//	404 NoSuchBucket                  FailedPrecondition: not an empty store
//	404 without either code           Unavailable: whoever said so is not S3
//	412                               AlreadyExists (Create), Conflict (Replace)
//	409 ConditionalRequestConflict    Unavailable: another write was under way
//	401, 403                          PermissionDenied
//	301, AuthorizationHeaderMalformed FailedPrecondition: another region
//	501                               FailedPrecondition: the server cannot
//	quota, 507                        ResourceExhausted
//	500, 503, time-out, reset, other  Unavailable: the outcome is unknown
//
// A body counts only when all the bytes arrived that the answer's length said;
// a range only when Content-Range is what was asked for; a listing only when
// its keys ascend over all pages.
//
// # Why aws-sdk-go-v2
//
// It is 0.5 MiB larger in a binary than minio-go (2.3 against 1.8 MiB), but
// conditional headers are fields of its requests, retries can be taken out, it
// asks nothing by itself (minio-go looks up the bucket's region), and it does
// not invent codes: minio-go makes NoSuchKey of any 404, so that a wrong proxy
// looks like an empty store. Its configuration loader is used for credentials
// only, where neither a file nor the environment has them.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Config says where a store is. Only Bucket is needed.
type Config struct {
	Bucket string
	Prefix string // before every key, without a slash at the end

	// Endpoint is the server's URL; default: AWS_ENDPOINT_URL_S3,
	// AWS_ENDPOINT_URL, else Amazon's of the region. Plain http is for
	// loopback addresses, or if PlainHTTP allows it.
	Endpoint  string
	PlainHTTP bool
	Region    string // default: AWS_REGION, AWS_DEFAULT_REGION, that of the profile, else us-east-1
	PathStyle bool   // the bucket is in the path, not in the host name
	CA        string // file of certificates (PEM) to trust besides the system's

	// Credentials is a file in the format of ~/.aws/credentials. It is read
	// again from time to time, so the keys in it may be changed. Default: the
	// SDK's chain, from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to the role
	// of the instance.
	Credentials string
	Profile     string // section of that file, or profile of ~/.aws/config; default AWS_PROFILE, else default

	Timeout time.Duration // of one request, plus 1 s for each 256 KiB; default 30 s

	Tested bool // Open has tested this server and bucket before: it makes no requests
}

// maxPrefix leaves room for a key in S3's limit of 1024 bytes.
const maxPrefix = 400

// Store is a prefix of a bucket.
type Store struct {
	client  *s3.Client
	bucket  string
	prefix  string // "" or ends in a slash
	timeout time.Duration
}

var _ store.Store = (*Store)(nil)

// Open returns the store in a bucket, after it has checked that the bucket is
// there, may be used, and is of a server that honours conditional writes, unless
// Config.Tested says that it has done so before.
func Open(ctx context.Context, c Config) (*Store, error) {
	s, err := connect(ctx, c)
	if err != nil {
		return nil, errs.Wrap(err, "open S3 bucket %q", c.Bucket)
	}
	if c.Tested {
		return s, nil
	}
	if err := s.probe(ctx); err != nil {
		return nil, errs.Wrap(err, "open S3 bucket %q", c.Bucket)
	}
	return s, nil
}

// Check reports what is wrong with c itself, without reading the files that it
// names or asking the server.
func (c *Config) Check() error {
	if c.Bucket == "" || strings.Contains(c.Bucket, "/") {
		return errs.New(errs.InvalidArgument, "%q is not the name of a bucket", c.Bucket)
	}
	if c.Prefix != "" && (store.CheckKey(c.Prefix) != nil || len(c.Prefix) > maxPrefix) {
		return errs.New(errs.InvalidArgument, "%q is not a prefix: it has up to %d bytes, in parts of letters, digits, '.', '_' and '-' "+
			"that are separated by single slashes and do not begin with a dot", c.Prefix, maxPrefix)
	}
	return checkEndpoint(c.endpoint(), c.PlainHTTP)
}

func (c *Config) endpoint() string {
	return cmp.Or(c.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
}

// connect makes the client. It sends nothing to the store; credentials may come
// from another service.
func connect(ctx context.Context, c Config) (*Store, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	s := &Store{bucket: c.Bucket, timeout: c.Timeout}
	if s.timeout == 0 {
		s.timeout = 30 * time.Second
	}
	if c.Prefix != "" {
		s.prefix = c.Prefix + "/"
	}
	client, err := httpClient(c.CA)
	if err != nil {
		return nil, err
	}
	region := cmp.Or(c.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	creds, configured, err := credentials(ctx, c.Credentials, c.Profile, region)
	if err != nil {
		return nil, err
	}
	o := s3.Options{
		Region:       cmp.Or(region, configured, "us-east-1"),
		Credentials:  creds,
		HTTPClient:   client,
		UsePathStyle: c.PathStyle,
		Retryer:      aws.NopRetryer{},
		Logger:       logging.Nop{},
		// Bodies are signed, so what is stored is what was sent; segments and
		// manifests have checksums of their own. More is not known by all servers.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	}
	if e := c.endpoint(); e != "" {
		o.BaseEndpoint = aws.String(e)
	}
	s.client = s3.New(o)
	return s, nil
}

// checkEndpoint refuses URLs that are not just a server, without repeating
// what may be a password in them.
func checkEndpoint(endpoint string, plain bool) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errs.New(errs.InvalidArgument, "the endpoint is not a URL like https://host:port")
	case u.User != nil:
		return errs.New(errs.InvalidArgument, "the endpoint has credentials in it").
			WithHint("put them into a file and name it as credentials, or into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return errs.New(errs.InvalidArgument, "endpoint %s://%s has a path or more: only the server belongs there", u.Scheme, u.Host)
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme == "http" && !local && !plain {
		return errs.New(errs.InvalidArgument, "endpoint %s would send data unencrypted", endpoint).
			WithHint("use https, with ca=FILE if its certificate is private; or say plain_http=true")
	}
	return nil
}

func httpClient(ca string) (*http.Client, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       30 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // lengths are of what was stored
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, errs.Wrap(err, "read the certificates to trust")
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errs.New(errs.InvalidArgument, "%s has no certificate in PEM form", ca)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	// A redirect is another region or another service: never followed with our signature.
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

func (s *Store) key(key string) *string { return aws.String(s.prefix + key) }

// begin checks the key and bounds the time of a request with size bytes of body.
func (s *Store) begin(ctx context.Context, key string, size int64) (context.Context, context.CancelFunc, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	try, cancel := context.WithTimeout(ctx, s.limit(size))
	return try, cancel, nil
}

// limit is how long a request with size bytes of body may take.
func (s *Store) limit(size int64) time.Duration {
	return s.timeout + time.Duration(max(size, 0)>>18)*time.Second
}

// readTries is how often a read is sent; it changes nothing.
const readTries = 3

// repeat sends a read again if the server answers that it cannot, or closes
// the connection; not after it has been silent for the time of a request.
func (s *Store) repeat(ctx context.Context, f func() error) error {
	wait, start := 100*time.Millisecond, time.Now()
	for try := 1; ; try++ {
		err := f()
		if try == readTries || !errs.Is(err, errs.Unavailable) || time.Since(start) >= s.timeout || !pause(ctx, wait) {
			return err
		}
		wait *= 4
	}
}

// deniedTries is how often a write or a deletion is sent that the server
// refuses, with pauses of 20, 40, 80 and 160 ms.
const deniedTries = 5

// insist sends a write or a deletion again that the server denies; see the
// package comment.
func (s *Store) insist(ctx context.Context, f func() error) error {
	wait := 20 * time.Millisecond
	for try := 1; ; try++ {
		err := f()
		if try == deniedTries || codeOf(err) != "AccessDenied" || !pause(ctx, wait) {
			return err
		}
		wait *= 2
	}
}

// pause waits, and is false if ctx has ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key string) (data []byte, v store.Version, err error) {
	err = s.repeat(ctx, func() error {
		data, v, err = s.get(ctx, key)
		return err
	})
	return data, v, err
}

func (s *Store) get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	try, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(s.timeout, cancel)
	defer late.Stop()
	out, err := s.client.GetObject(try, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	if err != nil {
		return nil, "", s.classify(ctx, key, err)
	}
	defer out.Body.Close()
	late.Reset(s.limit(aws.ToInt64(out.ContentLength))) // how much will come is known only now
	data, err := body(out.Body, out.ContentLength)
	if err != nil {
		return nil, "", s.classify(ctx, key, err)
	}
	v, err := version(key, out.ETag)
	return data, v, err
}

// body reads a body that must have the length n.
func body(r io.Reader, n *int64) ([]byte, error) {
	if n == nil || *n < 0 {
		return nil, errors.New("the answer does not say how long it is")
	}
	data := make([]byte, *n)
	if got, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("the body ended after %d bytes of %d: %w", got, *n, err)
	}
	if extra, err := r.Read(make([]byte, 1)); extra > 0 || err != nil && err != io.EOF {
		return nil, fmt.Errorf("the body does not end after %d bytes: %w", *n, err)
	}
	return data, nil
}

func version(key string, etag *string) (store.Version, error) {
	if etag == nil || *etag == "" || strings.HasPrefix(*etag, "W/") {
		return "", errs.New(errs.FailedPrecondition, "object %s: the server sends no strong ETag", key)
	}
	return store.Version(*etag), nil
}

// GetRange implements [store.Store].
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) (data []byte, err error) {
	if off < 0 || n < 0 {
		return nil, errs.New(errs.InvalidArgument, "object %s: range %d+%d", key, off, n)
	}
	err = s.repeat(ctx, func() error {
		data, err = s.getRange(ctx, key, off, max(n, 1))
		return err
	})
	return data[:min(n, int64(len(data)))], err
}

func (s *Store) getRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	try, cancel, err := s.begin(ctx, key, n)
	if err != nil {
		return nil, err
	}
	defer cancel()
	out, err := s.client.GetObject(try, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(key), Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1))})
	if codeOf(err) == "InvalidRange" {
		return nil, s.pastEnd(try, key, off, n)
	}
	if err != nil {
		return nil, s.classify(ctx, key, err)
	}
	defer out.Body.Close()
	var lo, hi, size int64
	got := aws.ToString(out.ContentRange)
	if _, err := fmt.Sscanf(got, "bytes %d-%d/%d", &lo, &hi, &size); err != nil || lo != off || hi != min(off+n, size)-1 || aws.ToInt64(out.ContentLength) != hi-lo+1 {
		return nil, errs.New(errs.Unavailable, "object %s: asked for %d+%d, got range %q of %d bytes", key, off, n, got, aws.ToInt64(out.ContentLength))
	}
	data, err := body(out.Body, out.ContentLength)
	if err != nil {
		return nil, s.classify(ctx, key, err)
	}
	return data, nil
}

// pastEnd says what it means that a range is not in the object: that it
// begins where the object ends is no error.
func (s *Store) pastEnd(ctx context.Context, key string, off, n int64) error {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	switch {
	case err != nil || out.ContentLength == nil:
		// Its answer has no body, so not even a 404 can be told from another.
		return errs.New(errs.Unavailable, "object %s: its size cannot be read", key)
	case *out.ContentLength == off:
		return nil
	case *out.ContentLength < off:
		return errs.New(errs.InvalidArgument, "object %s: range %d+%d of %d bytes", key, off, n, *out.ContentLength)
	}
	return errs.New(errs.Unavailable, "object %s: the server refuses range %d+%d of %d bytes", key, off, n, *out.ContentLength)
}

// Create implements [store.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	v, err := s.put(ctx, key, data, &s3.PutObjectInput{IfNoneMatch: aws.String("*")})
	if errors.Is(err, errPrecondition) {
		return "", errs.New(errs.AlreadyExists, "object %s exists", key)
	}
	return v, err
}

// Replace implements [store.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	v, err := s.put(ctx, key, data, &s3.PutObjectInput{IfMatch: aws.String(quoted(string(old)))})
	if !errors.Is(err, errPrecondition) {
		return v, err
	}
	// Some servers say 412 for an object that does not exist.
	if _, err := s.GetRange(ctx, key, 0, 0); errs.Is(err, errs.NotFound) {
		return "", err
	}
	return "", errs.New(errs.Conflict, "object %s has changed", key)
}

// quoted is an entity tag as HTTP wants it; servers send it so.
func quoted(etag string) string {
	if strings.HasPrefix(etag, `"`) {
		return etag
	}
	return `"` + etag + `"`
}

func (s *Store) put(ctx context.Context, key string, data []byte, in *s3.PutObjectInput) (store.Version, error) {
	try, cancel, err := s.begin(ctx, key, int64(len(data)))
	if err != nil {
		return "", err
	}
	defer cancel()
	in.Bucket, in.Key = &s.bucket, s.key(key)
	in.ContentLength, in.ContentType = aws.Int64(int64(len(data))), aws.String("application/octet-stream")
	var out *s3.PutObjectOutput
	err = s.insist(try, func() error {
		in.Body = bytes.NewReader(data)
		out, err = s.client.PutObject(try, in)
		return err
	})
	if err != nil {
		return "", s.classify(ctx, key, err)
	}
	return version(key, out.ETag)
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		var token *string
		last := ""
		for {
			page, err := s.page(ctx, prefix, token)
			if err != nil {
				yield(store.Info{}, err)
				return
			}
			for _, o := range page.Contents {
				name, ok := strings.CutPrefix(aws.ToString(o.Key), s.prefix+prefix)
				if name = prefix + name; !ok || name <= last && last != "" || o.Size == nil {
					yield(store.Info{}, errs.New(errs.FailedPrecondition, "listing of %q: object %q after %q is out of place", prefix, aws.ToString(o.Key), last))
					return
				}
				last = name
				if store.CheckKey(name) != nil {
					continue // not made by a store
				}
				if !yield(store.Info{Key: name, Size: *o.Size}, nil) {
					return
				}
			}
			if !aws.ToBool(page.IsTruncated) {
				return
			}
			if token = page.NextContinuationToken; aws.ToString(token) == "" {
				yield(store.Info{}, errs.New(errs.Unavailable, "listing of %q: there is more, but the server does not say where", prefix))
				return
			}
		}
	}
}

func (s *Store) page(ctx context.Context, prefix string, token *string) (page *s3.ListObjectsV2Output, err error) {
	err = s.repeat(ctx, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		try, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		page, err = s.client.ListObjectsV2(try, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: s.key(prefix), ContinuationToken: token})
		if err != nil {
			return s.classify(ctx, prefix, err)
		}
		return nil
	})
	return page, err
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	try, cancel, err := s.begin(ctx, key, 0)
	if err != nil {
		return err
	}
	defer cancel()
	err = s.insist(try, func() error {
		_, err := s.client.DeleteObject(try, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(key)})
		return err
	})
	if err != nil {
		if err = s.classify(ctx, key, err); !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}
