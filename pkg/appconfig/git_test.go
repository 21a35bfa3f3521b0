package appconfig

import (
	"reflect"
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
		"[git]\nfolders = {shop = \"./apps/shop/\", blog = \".\"}\n": {Git{Folders: map[string]string{"shop": "apps/shop", "blog": "."}}, "main"},
	} {
		c, err := Load(fstest.MapFS{"app.toml": {Data: []byte(text)}})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if !reflect.DeepEqual(c.Git, want.git) || !c.Git.Deploys(want.deploys) || c.Git.Deploys("other") {
			t.Errorf("%q is %+v, want %+v, which deploys %s", text, c.Git, want.git, want.deploys)
		}
	}
	for _, text := range []string{"branch = 1", "folders = \"apps\"", "folders.shop = \"../shop\"", "folders.shop = \"/shop\"", "folders.Shop = \"shop\"", "folders.shop = 1"} {
		if _, err := Load(fstest.MapFS{"app.toml": {Data: []byte("[git]\n" + text + "\n")}}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
