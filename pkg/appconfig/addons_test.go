package appconfig

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestAddons(t *testing.T) {
	load := func(text string) ([]Addon, error) {
		c, err := Load(fstest.MapFS{"app.toml": &fstest.MapFile{Data: []byte(text)}})
		if err != nil {
			return nil, err
		}
		return c.Addons, nil
	}
	got, err := load("[addons]\ndb = \"postgres\"\ncache = {kind = \"valkey\", size = \"1GB\", memory = \"256MB\"}\nreports = {kind = \"mysql\", prefix = \"REPORTS\", version = \"10.11\"}\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0] != (Addon{Name: "db", Kind: "postgres"}) || *got[1].SizeBytes == 0 || *got[1].MemoryBytes == 0 || got[2].Prefix != "REPORTS" || got[2].Version != "10.11" {
		t.Errorf("%+v", got)
	}
	for text, want := range map[string]string{
		"[addons]\ndb = \"postgre\"":                           "postgres",
		"[addons]\nDB = \"postgres\"":                          "lower-case",
		"[addons]\ndb = {size = \"1GB\"}":                      "has no kind",
		"[addons]\ndb = 5":                                     "db",
		"[addons]\ndb = {kind = \"valkey\", sise = \"1GB\"}":   "sise",
		"[addons]\ndb = {kind = \"valkey\", prefix = \"abc\"}": "capital letters",
		"[addons]\na = \"postgres\"\nb = \"mysql\"":            "set prefix",
		"addons = [\"postgres\"]":                              "addons",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
