package main

import "testing"

func TestReplaceLines(t *testing.T) {
	const (
		old = "127.0.0.1\tlocalhost\n10.0.0.2\ta\n"
		now = "127.0.0.1\tlocalhost\n10.0.0.3\tb\n"
	)
	for _, c := range []struct{ name, current, want string }{
		{"as it was", old, now},
		{"new already", now, now},
		{"with lines of the guest", "1.2.3.4 x\n" + old + "5.6.7.8 y", "1.2.3.4 x\n" + now + "5.6.7.8 y"},
		{"without a newline at the end", "10.0.0.2\ta", "10.0.0.3\tb\n"},
		{"replaced by the guest", "127.0.0.1\tlocalhost\n1.2.3.4 x\n", "127.0.0.1\tlocalhost\n1.2.3.4 x\n"},
		{"empty", "", ""},
	} {
		got, changed := replaceLines(c.current, old, now)
		if got != c.want || changed != (c.current != c.want) {
			t.Errorf("%s: %q, changed %v, want %q", c.name, got, changed, c.want)
		}
	}
	if got, changed := replaceLines(old, old, old); changed || got != old {
		t.Errorf("same identity: %q, %v", got, changed)
	}
}
