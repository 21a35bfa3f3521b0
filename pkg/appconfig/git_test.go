package appconfig

import (
	"testing"
	"testing/fstest"
)

func TestGit(t *testing.T) {
	for text, want := range map[string]struct {
		git     Git
		deploys string
	}{
		"":                                    {Git{}, "main"},
		"[git]\nbranch = \"live\"\n":          {Git{Branch: "live"}, "live"},
		"[git]\npreviews = true\n":            {Git{Previews: true}, "master"},
		"[git]\nbranch=\"a\"\npreviews=false": {Git{Branch: "a"}, "a"},
	} {
		c, err := Load(fstest.MapFS{"app.toml": {Data: []byte(text)}})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if c.Git != want.git || !c.Git.Deploys(want.deploys) || c.Git.Deploys("other") {
			t.Errorf("%q is %+v, want %+v, which deploys %s", text, c.Git, want.git, want.deploys)
		}
	}
	if _, err := Load(fstest.MapFS{"app.toml": {Data: []byte("[git]\nbranch = 1\n")}}); err == nil {
		t.Error("a number is a branch")
	}
}
