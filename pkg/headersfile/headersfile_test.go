package headersfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead: headers of a file; what is no header is told by its line, not its text.
func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "headers")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# key\n\nAuthorization: Bearer a:b\n X-Org :1\n")
	got, err := Read(file)
	if err != nil || len(got) != 2 || got["Authorization"] != "Bearer a:b" || got["X-Org"] != "1" {
		t.Errorf("%v, %v", got, err)
	}
	write("X: 1\nBearer secret\n")
	if _, err := Read(file); err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if _, err := Read(file + "-none"); err == nil {
		t.Error("a file that is missing")
	}
	if got, err := Read(""); got != nil || err != nil {
		t.Error(got, err)
	}
}
