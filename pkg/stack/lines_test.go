package stack

import "testing"

func TestLinesOfVersions(t *testing.T) {
	for want, tag := range map[string]string{
		"^8.2": "8.2-", ">=8.1": "8.1-", "~8.3.0": "8.3", "8.3.*": "8.3", "^8.1|^8.2": "8.1-", "^7.4 || ^8.0": "7.4-", ">=8.1 <8.4": "8.1-8.3",
		">= 8.1, < 8.3": "8.1-8.2", "~8.2": "8.2-", "*": "7.4-", "8.2.10": "8.2", ">=8.2 <8.3.1": "8.2-8.3", "!=8.5": "7.4-8.4", ">8.4": "8.4-", "<=8.0": "7.4-8.0",
		"^9.0": "", "5.6": "",
	} {
		if got := linesFor(phpLines, want); got != tag {
			t.Errorf("%q: %q, want %q", want, got, tag)
		}
	}
	for want, tag := range map[string]string{"3.3.5": "3.3", "~> 3.1": "3.1-3.4", "~> 3.2.0": "3.2", ">= 3.0 < 3.3": "3.0-3.2", "4.0.1": "4.0-"} {
		if got := linesFor(rubyLines, want); got != tag {
			t.Errorf("%q: %q, want %q", want, got, tag)
		}
	}
}
