package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// TestDescribe reads this test's own program: its modules are there, and twice the same.
func TestDescribe(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir() + "/foreign"
	if err := os.WriteFile(foreign, []byte("no program of Go"), 0o600); err != nil {
		t.Fatal(err)
	}
	encode := func() []byte {
		bom, err := describe("x", "1.2.3", time.Unix(1, 0).UTC(), []string{exe, foreign})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON).Encode(bom); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	first := encode()
	if !bytes.Equal(first, encode()) {
		t.Error("two lists of the same programs differ")
	}
	for _, want := range []string{`"pkg:golang/github.com/CycloneDX/cyclonedx-go@`, `"pkg:golang/stdlib@`, `"pkg:golang/miren.dev/runtime`, `"program:foreign"`, `"alg":"SHA-256"`} {
		if !bytes.Contains(first, []byte(want)) {
			t.Errorf("%s is missing in %s", want, first)
		}
	}
	if _, err := describe("x", "1", time.Unix(1, 0), []string{foreign + "-not"}); err == nil {
		t.Error("a program that does not exist was described")
	}
}
