package appconfig

import (
	"regexp"
	"slices"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"
)

// AddonKinds are the kinds of addons.
var AddonKinds = []string{"postgres", "valkey", "mysql", "s3"}

var (
	addonName    = regexp.MustCompile(AddonNamePattern)
	addonVersion = regexp.MustCompile(AddonVersionPattern)
	addonPrefix  = regexp.MustCompile(AddonPrefixPattern)
)

// addon returns the keys of an addon.
func (p *parser) addon(a *Addon) table {
	return table{
		"kind":    p.oneOf(&a.Kind, AddonKinds),
		"version": p.matching(&a.Version, addonVersion, `a version, such as "15"`),
		"prefix":  p.matching(&a.Prefix, addonPrefix, "capital letters, digits and _, beginning with a letter, at most 32"),
		"size":    p.diskSize(&a.SizeBytes),
		"memory":  p.memory(&a.MemoryBytes),
	}
}

// addons reads the table addons: of each its kind alone, or a table.
func (p *parser) addons(to *[]Addon, meta toml.MetaData) field {
	either := object(p.addon(&Addon{}), "kind")
	either.Type, either.Types = "", []string{"string", "object"}
	return field{named(AddonNamePattern, either), func(key string, v any) {
		for _, name := range p.order(key, v, meta) {
			at, value, a := key+"."+name, v.(map[string]any)[name], Addon{Name: name}
			if !addonName.MatchString(name) || len(name) > MaxAddonName {
				p.fail(at, "addon name %q must be lower-case letters, digits and dashes, beginning with a letter, at most %d", name, MaxAddonName)
			}
			if _, ok := value.(string); ok {
				p.oneOf(&a.Kind, AddonKinds).set(at, value)
			} else {
				p.table(p.addon(&a)).set(at, value)
				if a.Kind == "" {
					p.fail(at, "%s has no kind: postgres, valkey, mysql or s3", at)
				}
			}
			if i := slices.IndexFunc(*to, func(b Addon) bool { return b.variables() == a.variables() && b.Prefix == a.Prefix }); i >= 0 {
				p.fail(at, "%s and %s would give the app the same variables: set prefix in one of them", key+"."+(*to)[i].Name, at)
			}
			*to = append(*to, a)
		}
		if len(*to) > MaxAddons {
			p.fail(key, "there are %d addons, but at most %d", len(*to), MaxAddons)
		}
	}}
}

// variables is the same for kinds whose variables have the same names.
func (a *Addon) variables() string {
	if a.Kind == "mysql" {
		return "postgres"
	}
	return a.Kind
}

// matching reads a text that a pattern describes.
func (p *parser) matching(to *string, re *regexp.Regexp, what string) field {
	f := p.text(to)
	return field{&jsonschema.Schema{Type: "string", Pattern: re.String()}, func(key string, v any) {
		f.set(key, v)
		if *to != "" && !re.MatchString(*to) {
			p.fail(key, "%s is %q, not %s", key, *to, what)
		}
	}}
}
