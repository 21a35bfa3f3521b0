package appconfig

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"
)

// Patterns of values, for editors. What Parse refuses besides, such as a duration
// that is too long, it refuses with a message.
const (
	durationPattern = `^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
	cpuPattern      = `^[0-9]*\.?[0-9]+m?$`
	amountPattern   = `^\s*[0-9]*\.?[0-9]+\s*([KMGTkmgt][Ii]?)?[Bb]?\s*$`
)

// Schema returns the JSON Schema (draft 2020-12) of app.toml, as editors use it.
// Every file that Parse takes is valid. It describes every key.
func Schema() ([]byte, error) {
	p := &parser{}
	s := object(p.root(&Config{}, toml.MetaData{}))
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "app.toml"
	if err := describe("", s); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

// describe puts the text about each key into its schema. path is the key of s, with
// * for names that the file chooses.
func describe(path string, s *jsonschema.Schema) error {
	for key, sub := range s.Properties {
		at := key
		if path != "" {
			at = path + "." + key
		}
		if sub.Description = descriptions[at]; sub.Description == "" {
			return fmt.Errorf("%s has no description", at)
		}
		if err := describe(at, sub); err != nil {
			return err
		}
	}
	for _, sub := range s.PatternProperties {
		if err := describe(path+".*", sub); err != nil {
			return err
		}
	}
	return nil
}

func never() *jsonschema.Schema { return &jsonschema.Schema{Not: &jsonschema.Schema{}} }

// object is the schema of a table with these keys only.
func object(t table, required ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: never(), Required: required}
	for key, f := range t {
		s.Properties[key] = f.schema
	}
	return s
}

// named is the schema of a table whose keys are names.
func named(pattern string, value *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", PatternProperties: map[string]*jsonschema.Schema{pattern: value}, AdditionalProperties: never()}
}

func variables() *jsonschema.Schema {
	return named(EnvNamePattern, &jsonschema.Schema{Types: []string{"string", "number", "boolean"}})
}

func oneOfSchema(choices []string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, c := range choices {
		s.Enum = append(s.Enum, c)
	}
	return s
}

func listSchema(re *regexp.Regexp) *jsonschema.Schema {
	item := &jsonschema.Schema{Type: "string"}
	if re != nil {
		item.Pattern = re.String()
	}
	return &jsonschema.Schema{Type: "array", Items: item}
}

// amount is the schema of a number of bytes.
func amount(low float64) *jsonschema.Schema {
	return &jsonschema.Schema{Types: []string{"integer", "string"}, Minimum: jsonschema.Ptr(low), Pattern: amountPattern}
}
