// Package s3test starts S3 servers for tests, and puts a proxy before them that
// does what networks and servers do wrong.
//
// The servers are MinIO and versitygw, built by `hack/toolchain.sh test` and
// found on the PATH. They listen on loopback and keep their data in a directory
// of the test; when the test ends, and also when it dies, they end.
package s3test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"miren.dev/runtime/lsvd/store/s3"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/process"
	"miren.dev/runtime/testsupport/wait"
)

// Credentials of the servers.
const (
	AccessKey = "tester"
	SecretKey = "tester-secret"
)

// Server is a running S3 server.
type Server struct {
	URL         string
	Credentials string // file
	Dir         string // of its data
}

// kind is how one server is started.
type kind struct {
	binary string
	ready  string // path that answers 200 when it serves
	args   func(addr, data string) []string
	env    []string
}

var kinds = map[string]kind{
	"minio": {
		binary: "minio", ready: "/minio/health/ready",
		args: func(addr, data string) []string { return []string{"server", "--quiet", "--address", addr, data} },
		env: []string{"MINIO_ROOT_USER=" + AccessKey, "MINIO_ROOT_PASSWORD=" + SecretKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CI_CD=1"},
	},
	"versitygw": {
		binary: "versitygw", ready: "/health",
		args: func(addr, data string) []string {
			return []string{"--port", addr, "--health", "/health", "--quiet", "--keep-alive", "posix", data}
		},
		env: []string{"ROOT_ACCESS_KEY=" + AccessKey, "ROOT_SECRET_KEY=" + SecretKey},
	},
}

// Start starts the server "minio" or "versitygw" with a bucket named "bucket".
func Start(t testing.TB, name string) *Server {
	t.Helper()
	k := kinds[name]
	path, err := exec.LookPath(k.binary)
	if err != nil {
		need.Missing(t, k.binary, "is not built: run hack/toolchain.sh test and put bin/ on the PATH")
	}
	s := &Server{Dir: t.TempDir(), Credentials: filepath.Join(t.TempDir(), "credentials")}
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", AccessKey, SecretKey)
	if err := os.WriteFile(s.Credentials, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ {
		if s.URL, err = run(t, path, k, s.Dir); err == nil {
			break
		}
		if try == 3 { // another process may take the port before the server does
			t.Fatalf("start %s: %v", name, err)
		}
	}
	s.MakeBucket(t, "bucket")
	return s
}

// run starts one server on a free port and waits until it serves.
func run(t testing.TB, path string, k kind, data string) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().String()
	l.Close()
	server := process.Start(t, append([]string{"HOME=" + data + "-home"}, k.env...), path, k.args(addr, data)...)
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	wait.NoError(t, filepath.Base(path)+" serves", func() error {
		if server.Ended() {
			err = fmt.Errorf("it ended: %s", server.Output())
			return nil
		}
		resp, err := client.Get("http://" + addr + k.ready)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return "http://" + addr, err
}

// MakeBucket makes a bucket.
func (s *Server) MakeBucket(t testing.TB, bucket string) {
	t.Helper()
	c := awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(s.URL), UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: AccessKey, SecretAccessKey: SecretKey}, nil
		}),
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := c.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatalf("make bucket %s: %v", bucket, err)
	}
}

// Config is for the prefix of the server's bucket, through the server itself
// or what stands before it.
func (s *Server) Config(prefix, endpoint string) s3.Config {
	if endpoint == "" {
		endpoint = s.URL
	}
	return s3.Config{Bucket: "bucket", Prefix: prefix, Endpoint: endpoint, Region: "us-east-1", PathStyle: true, Credentials: s.Credentials}
}

// Open opens the store with a prefix of the test's name.
func (s *Server) Open(t testing.TB, endpoint string) *s3.Store {
	t.Helper()
	c := s.Config(Prefix(t), endpoint)
	st, err := s3.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Prefix makes a prefix of the name of the test.
func Prefix(t testing.TB) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
}
