package s3_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/pkg/errs"
)

// fake is an S3 server that keeps objects in memory, so that it passes the
// checks of Open, until answer takes a request over.
type fake struct {
	mu       sync.Mutex
	objects  map[string]string
	tags     map[string]string
	n        int
	requests atomic.Int64
	answer   func(w http.ResponseWriter, r *http.Request) bool
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	if f.answer != nil && f.answer(w, r) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := r.URL.Path
	have, ok := f.objects[key]
	switch {
	case r.URL.Query().Has("list-type"):
		io.WriteString(w, `<ListBucketResult></ListBucketResult>`)
	case r.Method == http.MethodPut:
		match := r.Header.Get("If-Match")
		if r.Header.Get("If-None-Match") == "*" && ok || match != "" && f.tags[key] != match {
			refuse(w, 412, "PreconditionFailed")
			return
		}
		body, _ := io.ReadAll(r.Body)
		f.n++
		f.objects[key], f.tags[key] = string(body), fmt.Sprintf("%q", fmt.Sprint(f.n))
		w.Header().Set("ETag", f.tags[key])
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case !ok:
		refuse(w, 404, "NoSuchKey")
	default:
		w.Header().Set("ETag", f.tags[key])
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(have))
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
}

func newFake(t *testing.T) (*fake, *httptest.Server) {
	f := &fake{objects: map[string]string{}, tags: map[string]string{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server
}

func config(t *testing.T, server *httptest.Server) s3.Config {
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("# keys\n[other]\naws_access_key_id=x\n[default]\naws_access_key_id = AK\naws_secret_access_key=hush=hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s3.Config{Bucket: "b", Prefix: "p", Endpoint: server.URL, PathStyle: true, Credentials: file, Timeout: 2 * time.Second}
}

func openFake(t *testing.T) (*fake, *s3.Store) {
	t.Helper()
	f, server := newFake(t)
	st, err := s3.Open(t.Context(), config(t, server))
	if err != nil {
		t.Fatal(err)
	}
	f.requests.Store(0)
	return f, st
}

// readTries is how often a read is sent that is not answered, deniedTries how
// often a write or a deletion that is refused.
const (
	readTries   = 3
	deniedTries = 5
)

// TestServerAnswersMapToClasses maps what servers answer to what a caller may conclude, and
// counts how often each operation was sent.
func TestServerAnswersMapToClasses(t *testing.T) {
	get := func(ctx context.Context, s *s3.Store) error { _, _, err := s.Get(ctx, "k"); return err }
	create := func(ctx context.Context, s *s3.Store) error { _, err := s.Create(ctx, "k", []byte("x")); return err }
	replace := func(ctx context.Context, s *s3.Store) error {
		_, err := s.Replace(ctx, "k", []byte("x"), `"1"`)
		return err
	}
	list := func(ctx context.Context, s *s3.Store) error {
		for _, err := range s.List(ctx, "") {
			return err
		}
		return nil
	}
	del := func(ctx context.Context, s *s3.Store) error { return s.Delete(ctx, "k") }
	reset := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	say := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { refuse(w, status, code) }
	}
	text := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); io.WriteString(w, body) }
	}
	for _, c := range []struct {
		name   string
		op     func(context.Context, *s3.Store) error
		answer http.HandlerFunc
		class  errs.Class
		sent   int64
	}{
		{"get of nothing", get, say(404, "NoSuchKey"), errs.NotFound, 1},
		{"get without bucket", get, say(404, "NoSuchBucket"), errs.FailedPrecondition, 1},
		{"get, proxy's 404", get, text(404, "<html>not found</html>"), errs.Unavailable, readTries},
		{"get, empty 404", get, text(404, ""), errs.Unavailable, readTries},
		{"get 503", get, say(503, "SlowDown"), errs.Unavailable, readTries},
		{"get 500", get, say(500, "InternalError"), errs.Unavailable, readTries},
		{"get reset", get, reset, errs.Unavailable, readTries},
		{"get 403", get, say(403, "AccessDenied"), errs.PermissionDenied, 1},
		{"get with another clock", get, say(403, "RequestTimeTooSkewed"), errs.PermissionDenied, 1},
		{"get, other region", get, say(301, "PermanentRedirect"), errs.FailedPrecondition, 1},
		{"get, redirect", get, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, errs.Unavailable, readTries},
		{"get, cut off", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "short")
		}, errs.Unavailable, readTries},
		{"get, of unknown length", get, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			io.WriteString(w, "some")
			w.(http.Flusher).Flush()
		}, errs.Unavailable, readTries},
		{"get without ETag", get, text(200, "x"), errs.FailedPrecondition, 1},
		{"get, weak ETag", get, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `W/"1"`) }, errs.FailedPrecondition, 1},
		{"create 412", create, say(412, "PreconditionFailed"), errs.AlreadyExists, 1},
		{"create 409", create, say(409, "ConditionalRequestConflict"), errs.Unavailable, 1},
		{"create 503", create, say(503, "SlowDown"), errs.Unavailable, 1},
		{"create 500", create, say(500, "InternalError"), errs.Unavailable, 1},
		{"create reset", create, reset, errs.Unavailable, 1},
		{"create without bucket", create, say(404, "NoSuchBucket"), errs.FailedPrecondition, 1},
		{"create, server out of time", create, say(400, "RequestTimeout"), errs.Unavailable, 1},
		{"create, full", create, say(507, "XMinioStorageFull"), errs.ResourceExhausted, 1},
		{"create, no such feature", create, say(501, "NotImplemented"), errs.FailedPrecondition, 1},
		{"create, token ended", create, say(400, "ExpiredToken"), errs.PermissionDenied, 1},
		{"create, wrong key", create, say(403, "SignatureDoesNotMatch"), errs.PermissionDenied, 1},
		{"create 403", create, say(403, "AccessDenied"), errs.PermissionDenied, deniedTries},
		{"create without ETag", create, text(200, ""), errs.FailedPrecondition, 1},
		{"replace 409", replace, say(409, "ConditionalRequestConflict"), errs.Unavailable, 1},
		{"replace 503", replace, say(503, "ServiceUnavailable"), errs.Unavailable, 1},
		{"replace 403", replace, say(403, "AccessDenied"), errs.PermissionDenied, deniedTries},
		{"replace reset", replace, reset, errs.Unavailable, 1},
		{"replace of nothing", replace, say(404, "NoSuchKey"), errs.NotFound, 1},
		{"replace, unknown 404", replace, text(404, ""), errs.Unavailable, 1},
		{"list without bucket", list, say(404, "NoSuchBucket"), errs.FailedPrecondition, 1},
		{"list 503", list, say(503, "SlowDown"), errs.Unavailable, readTries},
		{"list, no XML", list, text(200, "<html><p>hello"), errs.Unavailable, readTries},
		{"list, more but nowhere", list, text(200, `<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>`), errs.Unavailable, 1},
		{"list of another prefix", list, text(200, `<ListBucketResult><Contents><Key>q/x</Key><Size>1</Size></Contents></ListBucketResult>`), errs.FailedPrecondition, 1},
		{"delete of nothing", del, say(404, "NoSuchKey"), "", 1},
		{"delete without bucket", del, say(404, "NoSuchBucket"), errs.FailedPrecondition, 1},
		{"delete 403", del, say(403, "AccessDenied"), errs.PermissionDenied, deniedTries},
		{"delete 503", del, say(503, "SlowDown"), errs.Unavailable, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, st := openFake(t)
			f.answer = func(w http.ResponseWriter, r *http.Request) bool { c.answer(w, r); return true }
			err := c.op(t.Context(), st)
			if errs.ClassOf(err) != c.class {
				t.Errorf("error %v has class %q, want %q", err, errs.ClassOf(err), c.class)
			}
			// The HTTP client sends a GET once more when its connection was an old one.
			if n := f.requests.Load(); n != c.sent && !(c.sent == readTries && n == c.sent+1) {
				t.Errorf("sent %d times, want %d", n, c.sent)
			}
		})
	}
}

// TestDeniedForAMoment: what the server refuses only at first is done, and with
// the whole body.
func TestDeniedForAMoment(t *testing.T) {
	f, st := openFake(t)
	var refused atomic.Int64
	f.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet || refused.Add(1) > 2 {
			return false
		}
		io.Copy(io.Discard, r.Body)
		refuse(w, 403, "AccessDenied")
		return true
	}
	v, err := st.Create(t.Context(), "k", []byte("first"))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	refused.Store(0)
	if _, err := st.Replace(t.Context(), "k", []byte("second"), v); err != nil {
		t.Fatalf("replace: %v", err)
	}
	if b, _, err := st.Get(t.Context(), "k"); string(b) != "second" {
		t.Fatalf("it is %q, %v", b, err)
	}
	refused.Store(0)
	if err := st.Delete(t.Context(), "k"); err != nil {
		t.Fatalf("delete: %v", err)
	}
	if _, _, err := st.Get(t.Context(), "k"); !errs.Is(err, errs.NotFound) {
		t.Fatalf("after the deletion: %v", err)
	}
}

func TestRangeMustBeWhatWasAsked(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header string
		body   string
	}{
		"whole object":   {200, "", "0123456789"},
		"another range":  {206, "bytes 0-3/10", "0123"},
		"shorter range":  {206, "bytes 2-3/10", "23"},
		"wrong length":   {206, "bytes 2-5/10", "23"},
		"strange header": {206, "2-5", "2345"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, st := openFake(t)
			f.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				if c.header != "" {
					w.Header().Set("Content-Range", c.header)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
				return true
			}
			if data, err := st.GetRange(t.Context(), "k", 2, 4); !errs.Is(err, errs.Unavailable) || data != nil {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
}

// TestListPages follows pages and refuses keys out of order.
func TestListPages(t *testing.T) {
	f, st := openFake(t)
	pages := map[string]string{
		"":  `<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>p/a</Key><Size>1</Size></Contents><Contents><Key>p/b/.x</Key><Size>1</Size></Contents>`,
		"t": `<Contents><Key>p/c</Key><Size>3</Size></Contents>`,
	}
	f.answer = func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprintf(w, "<ListBucketResult>%s</ListBucketResult>", pages[r.URL.Query().Get("continuation-token")])
		return true
	}
	var got []string
	for i, err := range st.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(i))
	}
	if s := strings.Join(got, " "); s != "{a 1} {c 3}" {
		t.Errorf("got %s", s)
	}
	pages["t"] = `<Contents><Key>p/a</Key><Size>1</Size></Contents>`
	var last error
	for _, err := range st.List(t.Context(), "") {
		last = err
	}
	if !errs.Is(last, errs.FailedPrecondition) {
		t.Errorf("keys out of order: %v", last)
	}
}

// TestUnansweredRequestHasUnknownOutcome ends a request that is never answered, and leaves its outcome open.
func TestUnansweredRequestHasUnknownOutcome(t *testing.T) {
	_, server := newFake(t)
	c := config(t, server)
	c.Timeout = 2 * time.Second
	st, err := s3.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var size atomic.Int64 // of a body, of which it answers with half at first
	rest := make(chan struct{})
	f := server.Config.Handler.(*fake)
	f.answer = func(w http.ResponseWriter, r *http.Request) bool {
		io.Copy(io.Discard, r.Body)
		if n := size.Load(); n > 0 {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.Write(make([]byte, n/2))
			w.(http.Flusher).Flush()
		}
		select {
		case <-rest:
			w.Write(make([]byte, size.Load()/2))
		case <-r.Context().Done():
		}
		return true
	}
	if _, err := st.Create(t.Context(), "k", nil); !errs.Is(err, errs.Unavailable) {
		t.Errorf("time-out of a request: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := st.Create(ctx, "k", nil); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("time-out of the caller: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := st.Get(ctx, "k"); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("time-out of the caller of Get: %v", err)
	}

	// Get does not know how much will come: it waits as long as any request
	// for the beginning of the answer, and then for as much as that announces.
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := st.Get(ctx, "k"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("Get without an answer: %v", err)
	}
	size.Store(200 << 10)
	if _, _, err := st.Get(ctx, "k"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("Get of half an answer: %v", err)
	}
	size.Store(3 << 20) // for which it waits 13 s
	time.AfterFunc(3*c.Timeout, func() { close(rest) })
	if b, _, err := st.Get(ctx, "k"); err != nil || int64(len(b)) != size.Load() {
		t.Errorf("Get of a slow answer: %d bytes, %v", len(b), err)
	}
}

// denies answers requests of one method with 403.
func denies(method string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != method {
			return false
		}
		refuse(w, 403, "AccessDenied")
		return true
	}
}

// forgets overlooks a header.
func forgets(header string) func(http.ResponseWriter, *http.Request) bool {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del(header)
		return false
	}
}

// TestOpenRefuses servers that would lose data, and says what they lack.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request) bool
		class  errs.Class
		text   string
	}{
		"no bucket":        {func(w http.ResponseWriter, r *http.Request) bool { refuse(w, 404, "NoSuchBucket"); return true }, errs.FailedPrecondition, "does not exist"},
		"no If-None-Match": {forgets("If-None-Match"), errs.FailedPrecondition, "If-None-Match"},
		"no If-Match":      {forgets("If-Match"), errs.FailedPrecondition, "If-Match"},
		"read only":        {denies(http.MethodPut), errs.PermissionDenied, "write to it"},
		"no deletion":      {denies(http.MethodDelete), errs.PermissionDenied, "delete from it"},
	} {
		t.Run(name, func(t *testing.T) {
			f, server := newFake(t)
			f.answer = c.answer
			_, err := s3.Open(t.Context(), config(t, server))
			if !errs.Is(err, c.class) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v", err)
			}
			if strings.Contains(fmt.Sprintf("%+v %s", err, errs.HintOf(err)), "hush") {
				t.Errorf("the error shows the secret: %v", err)
			}
			if len(f.objects) > 0 && name != "no deletion" {
				t.Errorf("left behind: %v", f.objects)
			}
		})
	}
}

func TestPrivateCA(t *testing.T) {
	f := &fake{objects: map[string]string{}, tags: map[string]string{}}
	server := httptest.NewUnstartedServer(f)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	c := config(t, server)
	if _, err := s3.Open(t.Context(), c); !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown CA: %v", err)
	}
	c.CA = filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(c.CA, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s3.Open(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestBadCredentialsAreExplained(t *testing.T) {
	_, server := newFake(t)
	noCredentials(t)
	good := config(t, server)
	for name, change := range map[string]func(*s3.Config){
		"none":             func(c *s3.Config) { c.Credentials = "" },
		"no file":          func(c *s3.Config) { c.Credentials += "-not" },
		"no section":       func(c *s3.Config) { c.Profile = "nobody" },
		"half a section":   func(c *s3.Config) { c.Profile = "other" },
		"not of that form": func(c *s3.Config) { os.WriteFile(c.Credentials, []byte("hush"), 0o600) },
		"no profile":       func(c *s3.Config) { c.Credentials, c.Profile = "", "nobody" },
	} {
		c := good
		if c.Credentials != "" {
			c.Credentials = config(t, server).Credentials
		}
		change(&c)
		if _, err := s3.Open(t.Context(), c); !errs.Is(err, errs.FailedPrecondition) && !errs.Is(err, errs.InvalidArgument) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AK")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hush")
	c := good
	c.Credentials = ""
	if _, err := s3.Open(t.Context(), c); err != nil {
		t.Error(err)
	}
}
