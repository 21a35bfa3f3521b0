package main

import "testing"

func TestEveryBenchmarkHasATitle(t *testing.T) {
	for _, a := range areas {
		if x := titles[a.name]; x.title == "" || x.how == "" {
			t.Errorf("the benchmark %s has no title or no text", a.name)
		}
	}
}
