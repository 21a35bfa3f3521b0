package open_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/open"
	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/pkg/errs"
)

func clearEnv(t *testing.T) {
	for _, v := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(v, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestParseAcceptsStoreURLs(t *testing.T) {
	clearEnv(t)
	here, _ := filepath.Abs("disks")
	ca, _ := filepath.Abs("ca.pem")
	for url, want := range map[string]open.Location{
		"/a/b/../c":    {Dir: "/a/c"},
		"./disks":      {Dir: here},
		"file:///a/b/": {Dir: "/a/b"},
		"s3://bucket":  {S3: &s3.Config{Bucket: "bucket"}},
		"s3://b/x/y/":  {S3: &s3.Config{Bucket: "b", Prefix: "x/y"}},
		"s3://b?endpoint=https://h:9000&region=eu-1&ca=ca.pem&credentials=/c&profile=p&timeout=5s": {S3: &s3.Config{Bucket: "b", Endpoint: "https://h:9000",
			Region: "eu-1", CA: ca, Credentials: "/c", Profile: "p", Timeout: 5 * time.Second, PathStyle: true}},
		"s3://b?endpoint=http://127.0.0.1:9000&path_style=false": {S3: &s3.Config{Bucket: "b", Endpoint: "http://127.0.0.1:9000"}},
		"s3://b?endpoint=http://10.0.0.1&plain_http=true":        {S3: &s3.Config{Bucket: "b", Endpoint: "http://10.0.0.1", PathStyle: true, PlainHTTP: true}},
	} {
		got, err := open.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got.Dir != want.Dir || (got.S3 == nil) != (want.S3 == nil) || got.S3 != nil && *got.S3 != *want.S3 {
			t.Errorf("%s: got %+v %+v", url, got, got.S3)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	clearEnv(t)
	for url, hint := range map[string]string{
		"":                                   "",
		"disks":                              "./disks",
		"S3s://b":                            "s3://",
		"gs://b":                             "s3://",
		"file://host/a":                      "file:///",
		"file:///a?x=1":                      "",
		"s3://":                              "endpoint=",
		"s3://host:9000/b":                   "endpoint=",
		"s3://b?path-style=true":             "path_style",
		"s3://b?endpont=https://h":           "endpoint",
		"s3://b?sauce=1":                     "region",
		"s3://b?region=a&region=b":           "",
		"s3://b?region=":                     "",
		"s3://b?path_style=maybe":            "",
		"s3://b?timeout=0s":                  "",
		"s3://b/../c":                        "",
		"s3://b/.tmp":                        "",
		"s3://KEY:hush@b":                    "credentials=FILE",
		"s3://KEY:hush%@b":                   "",
		"s3://b?endpoint=https://KEY:hush@h": "AWS_ACCESS_KEY_ID",
		"s3://b?endpoint=h:9000":             "",
		"s3://b?endpoint=https://h/b":        "",
		"s3://b?endpoint=http://10.0.0.1":    "plain_http",
	} {
		_, err := open.Parse(url)
		if !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", url, err)
			continue
		}
		if !strings.Contains(errs.HintOf(err), hint) {
			t.Errorf("%q: hint %q lacks %q", url, errs.HintOf(err), hint)
		}
		if strings.Contains(err.Error()+errs.HintOf(err), "hush") {
			t.Errorf("%q: the error repeats the secret: %v", url, err)
		}
	}
}

func TestStoreOfDirectory(t *testing.T) {
	st, err := open.Store(t.Context(), "file://"+t.TempDir()+"/new")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Create(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
}

// TestNoCredentials says what is missing before it asks any server.
func TestNoCredentials(t *testing.T) {
	clearEnv(t)
	_, err := open.Store(t.Context(), "s3://b?endpoint=https://127.0.0.1:1")
	if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), "credentials=FILE") {
		t.Fatalf("%v (%s)", err, errs.HintOf(err))
	}
}
