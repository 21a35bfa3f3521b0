package baseimage

import (
	"archive/zip"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/sumdb/note"

	"miren.dev/runtime/pkg/errs"
)

const testModule = "v0.0.1-go1.99.0.linux-amd64"

// archive makes the zip of a toolchain with one file, and returns its path and hash.
func archive(t *testing.T, content string) (path, sum string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "go.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	w, err := z.Create(toolchainModule + "@" + testModule + "/VERSION")
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if sum, err = dirhash.HashZip(path, dirhash.Hash1); err != nil {
		t.Fatal(err)
	}
	return path, sum
}

// database serves a checksum database that knows one sum, signed with a key of its own, as a proxy does. It returns
// the URL and the verifier key.
func database(t *testing.T, name, sum string) (proxy, key string) {
	t.Helper()
	skey, vkey, err := note.GenerateKey(nil, name)
	if err != nil {
		t.Fatal(err)
	}
	ops := sumdb.NewTestServer(skey, func(path, version string) ([]byte, error) {
		return []byte(path + " " + version + " " + sum + "\n" + path + " " + version + "/go.mod " + sum + "\n"), nil
	})
	srv := httptest.NewServer(http.StripPrefix("/sumdb/"+name, sumdb.NewServer(ops)))
	t.Cleanup(srv.Close)
	return srv.URL, vkey
}

func TestToolchainIsCheckedAgainstSignedDatabase(t *testing.T) {
	good, sum := archive(t, "go1.99.0")
	other, _ := archive(t, "go1.99.0, changed on the way")
	proxy, key := database(t, "sum.example.test", sum)
	forged, _ := database(t, "sum.example.test", sum) // sends the same, signed with another key
	for _, tt := range []struct {
		name, proxy, archive string
		want                 errs.Class
	}{
		{name: "what the database knows", proxy: proxy, archive: good},
		{name: "another archive", proxy: proxy, archive: other, want: errs.Corrupt},
		{name: "a database with another key", proxy: forged, archive: good, want: errs.Corrupt},
		{name: "no database", proxy: "http://127.0.0.1:1", archive: good, want: errs.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("GOSUMDB", key)
			t.Setenv("GONOSUMDB", "")
			err := checkGoSum(t.Context(), tt.proxy, t.TempDir(), testModule, tt.archive)
			if tt.want == "" && err != nil || tt.want != "" && !errs.Is(err, tt.want) {
				t.Errorf("got %v, want class %q", err, tt.want)
			}
		})
	}
}

func TestDatabaseMayNotForgetWhatItSaid(t *testing.T) {
	t.Setenv("GONOSUMDB", "")
	path, sum := archive(t, "go1.99.0")
	proxy, key := database(t, "sum.example.test", sum)
	t.Setenv("GOSUMDB", key)
	dir := t.TempDir()
	if err := checkGoSum(t.Context(), proxy, dir, testModule, path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "sumdb", "sum.example.test", "latest")); err != nil || !strings.Contains(string(b), "go.sum database tree") {
		t.Errorf("the signed tree is not kept: %q, %v", b, err)
	}
}

func TestSumDBKeyOfEnvironment(t *testing.T) {
	for env, want := range map[string]string{"": publicSumDB, "sum.golang.org": publicSumDB, "off": ""} {
		t.Setenv("GOSUMDB", env)
		t.Setenv("GONOSUMDB", "")
		if got, err := sumDBKey(); err != nil || got != want {
			t.Errorf("GOSUMDB=%q: got %q, %v", env, got, err)
		}
	}
	t.Setenv("GOSUMDB", "nonsense")
	if _, err := sumDBKey(); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("GOSUMDB=nonsense: got %v", err)
	}
}
