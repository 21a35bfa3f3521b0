package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigureRoute(t *testing.T) {
	f := newFake(t)
	f.shop()
	page := filepath.Join(t.TempDir(), "busy.html")
	if err := os.WriteFile(page, []byte("<p>busy</p>"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ADMIN_PASSWORD", "right")
	contains(t, ok(t, "route", "configure", "shop.example.com", "--path", "/x", "--rate", "5", "--max-body", "10MiB", "--error-page", "503="+page,
		"--user", "ann=ADMIN_PASSWORD", "--reset", "timeout", "--compress=false"), "configured shop.example.com/x")
	contains(t, strings.Join(f.calls, "\n"), "configure shop.example.com/x 5 10485760 map[503:<p>busy</p>] map[ann:right] [timeout compress]")
	for _, args := range [][]string{{"--max-body", "much"}, {"--user", "ann"}, {"--user", "ann=NOT_SET_HERE"}, {"--error-page", "503"}, {"--error-page", "503=/none"}} {
		if r := run(t, false, "", append([]string{"route", "configure", "shop.example.com"}, args...)...); r.code != 2 {
			t.Errorf("%v: exit %d %s", args, r.code, r.err)
		}
	}
	contains(t, ok(t, "app", "maintenance", "on", "-a", "shop", "-m", "Back soon."), "maintenance of shop is on")
	contains(t, ok(t, "app", "maintenance", "off", "-a", "shop"), "is off")
	contains(t, strings.Join(f.calls, "\n"), "maintain shop true Back soon.\nmaintain shop false ")
	if r := run(t, false, "", "app", "maintenance", "maybe", "-a", "shop"); r.code != 2 {
		t.Errorf("exit %d", r.code)
	}
}
