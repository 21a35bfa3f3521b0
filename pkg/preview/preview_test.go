package preview

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

func TestLabel(t *testing.T) {
	const id = "sb-0123456789abcdef"
	for _, port := range []int{1, 3000, MaxPort} {
		if sb, p, ok := ParseLabel(Label(id, port)); sb != id || p != port || !ok {
			t.Errorf("port %d: %q %d %v", port, sb, p, ok)
		}
	}
	for _, s := range []string{
		"", "3000", "3000-", "-sb0123456789abcdef", "03000-sb0123456789abcdef", Label(id, 0), "65536-sb0123456789abcdef", "3000-sb-0123456789abcdef",
		"3000-sb0123456789abcde", "3000-sb0123456789abcdef0", "3000-SB0123456789abcdef", "x3000-sb0123456789abcdef", "3000-app0123456789abcdef",
	} {
		if sb, p, ok := ParseLabel(s); ok {
			t.Errorf("%q is %q %d", s, sb, p)
		}
	}
}

func TestToken(t *testing.T) {
	k, other := NewKey([]byte("secret")), NewKey([]byte("other"))
	now := time.Unix(1_800_000_000, 0)
	end := now.Add(time.Hour)
	tok := k.Sign("pv-a", end)
	if got, err := Verify(k.Public(), tok, now, "sb-a", "pv-a"); err != nil || !got.Equal(end) {
		t.Errorf("valid: %v %v", got, err)
	}
	if got, err := Verify(k.Public(), k.Sign("pv-a", time.Time{}), now, "pv-a"); err != nil || !got.IsZero() {
		t.Errorf("without end: %v %v", got, err)
	}
	if _, err := Verify(k.Public(), tok, end, "pv-a"); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("expired: %v", err)
	}
	flipped := "B" + tok[1:]
	for name, f := range map[string]func() error{
		"subject":   func() error { _, err := Verify(k.Public(), tok, now, "pv-b"); return err },
		"key":       func() error { _, err := Verify(other.Public(), tok, now, "pv-a"); return err },
		"no key":    func() error { _, err := Verify(nil, tok, now, "pv-a"); return err },
		"expiry":    func() error { _, err := Verify(k.Public(), flipped, now, "pv-a"); return err },
		"empty":     func() error { _, err := Verify(k.Public(), "", now, "pv-a"); return err },
		"more":      func() error { _, err := Verify(k.Public(), tok+"AAAA", now, "pv-a"); return err },
		"no base64": func() error { _, err := Verify(k.Public(), strings.Repeat("*", len(tok)), now, "pv-a"); return err },
		"no name":   func() error { _, err := Verify(k.Public(), tok, now); return err },
	} {
		if err := f(); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
