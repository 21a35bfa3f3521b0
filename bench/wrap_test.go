package main

import (
	"strings"
	"testing"
)

func TestWrapKeepsTablesAndIndentsItems(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("word ", 40))
	row := "| " + words + " | " + words + " |"
	in := "# Title\n\n" + words + "\n" + words + "\n\n" + row + "\n\n- " + words + "\n- short\n"
	out := wrap(in)
	if strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(in), " ") {
		t.Errorf("words changed:\n%s", out)
	}
	if !strings.Contains(out, "\n"+row+"\n") {
		t.Errorf("the table changed:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if line := strings.TrimSuffix(line, "\n"); len(line) > columns && line != row {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if !strings.Contains(out, "\n  word") || !strings.HasSuffix(out, "\n- short\n") {
		t.Errorf("items are not indented:\n%s", out)
	}
}
