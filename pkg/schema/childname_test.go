package schema

import (
	"strings"
	"testing"
)

func TestChildNamesAreShortAndDistinct(t *testing.T) {
	long := strings.Repeat("a", 60)
	seen := map[string]bool{}
	for _, tc := range []struct{ base, suffix string }{
		{"shop-v1", "web"}, {long, "1"}, {long, "2"}, {long + "bbb", "1"}, {strings.Repeat("c-", 31) + "c", "12345"}, {"x", strings.Repeat("d", 62)},
	} {
		n := ChildName(tc.base, tc.suffix, MaxName)
		if !ValidName(n) || seen[n] {
			t.Errorf("%q", n)
		}
		seen[n] = true
	}
	if !seen["shop-v1-web"] {
		t.Error("a short name is changed")
	}
}
