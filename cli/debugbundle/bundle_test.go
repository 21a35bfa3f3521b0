package debugbundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/schema"
)

// planted is part of every secret of these tests.
const planted = "PLANTED0123456789"

func TestSecretsInTextsAreRemoved(t *testing.T) {
	cfg := config.Default()
	cfg.Store.URL = "postgres://user:" + planted + "@db.example.com/runtime?sslmode=require"
	cfg.Executions.Store = "s3://bucket/prefix?access_key=" + planted
	cfg.Disks.Stores = []string{"s3://bucket/prefix?credentials=/etc/x&secret=" + planted}
	var b bytes.Buffer
	if err := config.Generate(&b, cfg); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), planted) {
		t.Fatal("the configuration has no secret, so nothing is tested")
	}
	for what, text := range map[string]string{
		"configuration":  b.String(),
		"key of PEM":     "x\n-----BEGIN EC PRIVATE KEY-----\n" + planted + "\n-----END EC PRIVATE KEY-----\ny",
		"cut key of PEM": "-----BEGIN PRIVATE KEY-----\n" + planted,
		"key of age":     "AGE-SECRET-KEY-1" + planted,
		"API key":        "level=INFO key e2b_" + planted + " used",
		"web token":      "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + planted,
		"header":         "Authorization: Bearer " + planted,
		"header in JSON": `{"Authorization":"Basic ` + planted + `"}`,
		"assignment":     "DB_PASSWORD=" + planted,
		"quoted":         `msg="x" token="a \" ` + planted + `" y`,
		"YAML":           "api_key: " + planted,
		"JSON":           `{"clientSecret": "` + planted + `"}`,
		"URL in a log":   `error="dial postgres://u:` + planted + `@127.0.0.1/db"`,
		"URL with @":     "dial postgres://u:p@" + planted + "@127.0.0.1/db",
		"runner's token": "r runner start --token rrt_" + strings.ToLower(planted) + planted,
		"URL parameter":  "GET https://example.com/path?code=" + planted,
	} {
		if got := scrub([]byte(text)); bytes.Contains(got, []byte(planted)) {
			t.Errorf("%s: %s", what, got)
		}
	}
	const harmless = `time=2026-01-02T03:04:05Z level=INFO msg="server runs" node=node-hwz7hfftbyma5kz7 url=https://example.com/path`
	if got := scrub([]byte(harmless)); string(got) != harmless {
		t.Errorf("a line without secrets became %s", got)
	}
}

func TestTextsOfUsersAreNotInEntities(t *testing.T) {
	a := app.NewApp()
	a.ID, a.Name, a.CreatedAt = "app-hwz7hfftbyma5kz7", "shop", time.Unix(1, 0)
	a.Labels = map[string]string{planted: planted}
	a.Spec.Env = map[string]string{"lower_" + strings.ToLower(planted): planted, "DSN": planted}
	text, err := json.Marshal(schema.Object(a))
	if err == nil {
		text, err = redactEntity(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(bytes.ToUpper(text), []byte(planted)) {
		t.Errorf("%s", text)
	}
	for _, want := range []string{"app-hwz7hfftbyma5kz7", `"shop"`, "1970-01-01T"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s is missing: %s", want, text)
		}
	}
}

func TestBundleIsBounded(t *testing.T) {
	const most = 1 << 16
	var out bytes.Buffer
	b := &bundle{tar: tar.NewWriter(&out), left: most + 10, most: most}
	big := append(bytes.Repeat([]byte("line\n"), most/4), "end\n"...)
	b.add("first", big)
	b.add("second", big)
	if err := errors.Join(b.err, b.tar.Close()); err != nil {
		t.Fatal(err)
	}
	if out.Len() > most+10<<10 {
		t.Errorf("%d bytes", out.Len())
	}
	r := tar.NewReader(&out)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !bytes.HasSuffix(text, []byte("end\n")) {
		t.Errorf("the end is not kept: %v", err)
	}
	log := filepath.Join(t.TempDir(), "x.log")
	if err := os.WriteFile(log, append(bytes.Repeat([]byte("line\n"), maxLog), "end\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := tail(log)
	if err != nil || len(text) > maxLog || !bytes.HasPrefix(text, []byte("line\n")) || !bytes.HasSuffix(text, []byte("line\nend\n")) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
