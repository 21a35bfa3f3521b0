package buildkit

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/pkg/errs"
)

const secretToken, secretFile = "tok3n-Wq7Zr1", "first-l1ne-Hx\nsecond-l1ne-Ky\n"

// testSecrets: steps use build secrets, and no layer, log or file of the builder has them.
func testSecrets(t *testing.T, e *env) {
	const steps = `test "$TOKEN" = tok3n-W''q7Zr1 && echo "the token is $TOKEN" && printf %s "$TOKEN" | sha256sum | cut -c1-12 > used.txt`
	t.Run("generated Dockerfile", func(t *testing.T) {
		req, plan := e.request(t, folder(t, `-- app.toml --
[build]
secrets = ["TOKEN"]
-- package.json --
{"scripts": {"build": "sh build.sh", "start": "node server.js"}}
-- build.sh --
`+steps+`
-- server.js --
const used = require('fs').readFileSync('used.txt', 'utf8')
require('http').createServer((req, res) => res.end('built with ' + used + process.env.TOKEN)).listen(process.env.PORT)
`), "secret-node")
		if len(plan.Secrets) != 1 {
			t.Fatalf("secrets %+v", plan.Secrets)
		}
		req.Secrets = map[string]string{"TOKEN": secretToken}
		e.serves(t, e.builtWithSecrets(t, req), plan, "built with 3db7cb986d24\nundefined")
	})
	t.Run("Dockerfile", func(t *testing.T) {
		req := e.dockerfile(t, `FROM debian
RUN --mount=type=secret,id=npmrc,target=/root/.npmrc,required=true \
    cat /root/.npmrc && grep -q second-l.ne /root/.npmrc && test "$(stat -c %a /root/.npmrc)" = 400
RUN --mount=type=secret,id=TOKEN,env=TOKEN `+steps+`
RUN test -z "$TOKEN" && test ! -s /root/.npmrc && test ! -e /run/secrets/TOKEN
`)
		req.Secrets = map[string]string{"TOKEN": secretToken, "npmrc": secretFile}
		e.builtWithSecrets(t, req)
	})
	t.Run("a failure does not show them", func(t *testing.T) {
		req := e.dockerfile(t, "FROM debian\nRUN --mount=type=secret,id=TOKEN,env=TOKEN echo \"bad $TOKEN\" >&2 && exit 9\n")
		req.Secrets = map[string]string{"TOKEN": secretToken}
		_, events, err := e.build(t, req)
		if text := fmt.Sprint(err, errs.HintOf(err), failureLog(err), events); strings.Contains(text, secretToken) || !strings.Contains(failureLog(err), "bad ****") {
			t.Error(text)
		}
	})
	t.Run("without the secret", func(t *testing.T) {
		_, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN --mount=type=secret,id=TOKEN,required=true true\n"))
		if err == nil || !strings.Contains(err.Error(), "TOKEN") {
			t.Error(err)
		}
	})
	e.lacks(t, e.instance.State(), "tok3n-Wq7", "first-l1ne", "second-l1ne")
}

// builtWithSecrets builds, and looks for the secrets in the log and in the image.
func (e *env) builtWithSecrets(t *testing.T, req Request) *Result {
	t.Helper()
	res, events, err := e.build(t, req)
	if err != nil {
		t.Fatal(err, errs.HintOf(err), failureLog(err))
	}
	log := fmt.Sprint(events)
	if !strings.Contains(log, "the token is ****") {
		t.Errorf("the step that prints the secret did not run: %s", log)
	}
	var image bytes.Buffer
	e.blobs(t, res.Image, &image)
	for _, secret := range []string{secretToken, "first-l1ne", "second-l1ne"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %s: %s", secret, log)
		}
		if bytes.Contains(image.Bytes(), []byte(secret)) {
			t.Errorf("the image has %s", secret)
		}
	}
	if !bytes.Contains(image.Bytes(), []byte("used.txt")) {
		t.Error("no layer has what the build wrote")
	}
	return res
}

// blobs writes everything that an image consists of: manifest, configuration, and its layers, unpacked.
func (e *env) blobs(t *testing.T, image string, to io.Writer) {
	t.Helper()
	c, err := e.containerd.Client()
	if err != nil {
		t.Fatal(err)
	}
	img, err := c.GetImage(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := images.Manifest(t.Context(), c.ContentStore(), img.Target(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, desc := range append(manifest.Layers, img.Target(), manifest.Config) {
		b, err := content.ReadBlob(t.Context(), c.ContentStore(), desc)
		if err != nil {
			t.Fatal(err)
		}
		var r io.Reader = bytes.NewReader(b)
		if strings.HasSuffix(desc.MediaType, "+zstd") {
			z, err := zstd.NewReader(r)
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			r = z
		}
		if _, err := io.Copy(to, r); err != nil {
			t.Fatal(desc.MediaType, err)
		}
	}
}

// lacks fails for every file below a folder that has one of the texts.
func (e *env) lacks(t *testing.T, dir string, texts ...string) {
	t.Helper()
	files := 0
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // the builder works on
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		for _, text := range texts {
			// What the test itself wrote has it in two parts.
			if bytes.Contains(b, []byte(text)) {
				t.Errorf("%s has %s", path, text)
			}
		}
		return nil
	}); err != nil || files == 0 {
		t.Fatal(files, err)
	}
}

func TestMask(t *testing.T) {
	m := newMask(map[string]string{
		"A": "s3cret", "B": "s3cret-longer\n", "C": "-----BEGIN-----\r\nline-two\n", "D": "https://me:p%40ss-word@packages.example.com/simple", "E": "x y=z!", "F": "abc",
	})
	for in, want := range map[string]string{
		"a s3cret, s3cret-longer.":                              "a ****, ****.",
		"x-----BEGIN-----x line-two":                            "x****x ****",
		"https://me:p@ss-word@other.host":                       "https://me:****@other.host",
		"x+y%3Dz%21 and x%20y=z%21":                             "**** and ****",
		"abc stays":                                             "abc stays",
		"at https://me:p%40ss-word@packages.example.com/simple": "at ****",
	} {
		if got := m.text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := newMask(nil).text("as it is"); got != "as it is" {
		t.Error(got)
	}
}
