package text

import "testing"

func TestCutKeepsCharactersWhole(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"é", 1, ""}, {"日本", 5, "日"}, {"日本", 6, "日本"},
	} {
		if got := Cut(c.s, c.n); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"app": "app", "99 bottles": "bottles", "Ünïcode": "n-code", "a--b__c": "a-b-c", "-x-": "x", "!!!": "",
		"a1234567890": "a123456789", "a12345678 x": "a12345678",
	} {
		if got := Name(in, 10); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
}
