package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/tlstest"
)

// TestCertificates: no output has the key.
func TestCertificates(t *testing.T) {
	newFake(t)
	chain, key := tlstest.New(t).Issue(t, "Shop.example.com", "*.shop.example.com")
	dir := t.TempDir()
	files := []string{"--cert", filepath.Join(dir, "cert.pem"), "--key", filepath.Join(dir, "key.pem")}
	for i, text := range []string{chain, key} {
		if err := os.WriteFile(files[2*i+1], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := append([]string{"certificate", "set", "shop"}, files...)
	out := ok(t, set...)
	contains(t, out, "shop", "*.shop.example.com, shop.example.com", "valid until")
	out += ok(t, append(set, "--json")...) // again
	list := ok(t, "certificate", "list")
	contains(t, list, "*.shop.example.com,shop.example.com")
	if strings.Count(list, "valid until") != 1 {
		t.Error(list)
	}
	shown := ok(t, "certificate", "show", "shop")
	contains(t, shown, "CN=test authority", "sha256")
	out += list + shown + ok(t, "certificate", "show", "shop", "--json") + ok(t, "certificate", "list", "--json") + ok(t, "entity", "get", "certificate", "shop", "--json")
	if contains(t, out, "[secret]"); strings.Contains(out, "PRIVATE KEY") || strings.Contains(out, strings.Split(key, "\n")[1]) {
		t.Error(out)
	}
	if r := run(t, false, "", "certificate", "set", "shop", "--cert", files[1]); r.code != exit.Usage {
		t.Errorf("without a key: %+v", r)
	}
	if r := run(t, false, "", "certificate", "set", "shop", "--cert", files[1], "--key", dir+"/none"); r.code == 0 || !strings.Contains(r.err, "/none") {
		t.Errorf("a file that does not exist: %+v", r)
	}
	if r := run(t, false, "", "certificate", "set", "shop", "--cert", files[3], "--key", files[3]); r.code == 0 || !strings.Contains(r.err, "PRIVATE KEY") {
		t.Errorf("a key in place of the certificate: %+v", r)
	}
	contains(t, ok(t, "certificate", "delete", "shop"), "deleted")
	if r := run(t, false, "", "certificate", "show", "shop"); r.code == 0 || !strings.Contains(r.err, "shop") {
		t.Errorf("%+v", r)
	}
}
