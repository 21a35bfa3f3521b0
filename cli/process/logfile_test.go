package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBoundedLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "server.log")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := BoundedLog(f).(*boundedFile)
	w.max = 1000
	line := strings.Repeat("x", 99) + "\n"
	for range 50 {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	for _, file := range []string{name, name + ".1"} {
		st, err := os.Stat(file)
		if err != nil || st.Size() > 1200 || st.Size() == 0 {
			t.Errorf("%s: %v %v", file, st, err)
		}
	}
}
