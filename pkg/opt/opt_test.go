package opt

import "testing"

func TestFields(t *testing.T) {
	if Of("") != nil || Value[string](nil) != "" {
		t.Error("the zero value is present")
	}
	if p := Of(7); p == nil || *p != 7 || Value(p) != 7 {
		t.Errorf("%v", p)
	}
}
