package suggest

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"default", "required", "pattern", "doc", "env"}
	for got, want := range map[string]string{
		"defualt": "default", "defaul": "default", "requird": "required", "patern": "pattern",
		"docs": "doc", "xyzzy": "", "d": "", "": "", "evn": "env", "on_delete": "",
	} {
		if s := Nearest(got, known); s != want {
			t.Errorf("Nearest(%q) = %q, want %q", got, s, want)
		}
	}
}
