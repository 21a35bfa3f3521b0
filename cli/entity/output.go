package entity

import (
	"bytes"
	"encoding/json"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

// output holds the flags that choose a format.
type output struct {
	given string
	yaml  bool
}

func (o *output) addFlags(cmd *cobra.Command, _ *command.Env) {
	cmd.Flags().StringVarP(&o.given, "output", "o", "", "format: table, json, yaml")
	cmd.Flags().BoolVar(&o.yaml, "yaml", false, "the same as -o yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
}

func (o *output) format(e *command.Env) (format, error) {
	f := format(o.given)
	switch {
	case f == "" && o.yaml:
		return formatYAML, nil
	case f == "" && e.JSON:
		return formatJSON, nil
	case f == "":
		return formatTable, nil
	case f == formatJSON || f == formatYAML || f == formatTable:
		return f, nil
	}
	return "", exit.Usagef("-o %s: the formats are table, json and yaml", o.given)
}

// printDocuments prints a list as one document, or with lines as one per line.
func printDocuments(e *command.Env, f format, objects []schema.Object, lines bool) error {
	docs := make([]json.RawMessage, len(objects))
	for i, o := range objects {
		d, err := document(o)
		if err != nil {
			return err
		}
		docs[i] = d
	}
	if f == formatJSON {
		if lines {
			return e.PrintJSONLine(docs)
		}
		return e.PrintJSON(docs)
	}
	for i, d := range docs {
		if i > 0 || lines {
			if _, err := e.Out.Write([]byte("---\n")); err != nil {
				return err
			}
		}
		if err := writeYAML(e, d); err != nil {
			return err
		}
	}
	return nil
}

func printDocument(e *command.Env, f format, o schema.Object) error {
	d, err := document(o)
	if err != nil {
		return err
	}
	if f == formatJSON {
		return e.PrintJSON(d)
	}
	return writeYAML(e, d)
}

// writeYAML prints a JSON document as YAML, keys in the same order.
func writeYAML(e *command.Env, doc json.RawMessage) error {
	var n yaml.Node
	// JSON is YAML in another style.
	if err := yaml.Unmarshal(doc, &n); err != nil {
		return errs.New(errs.Internal, "print as YAML: %w", err)
	}
	block(&n)
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return errs.New(errs.Internal, "print as YAML: %w", err)
	}
	_, err := e.Out.Write(buf.Bytes())
	return err
}

// block removes the style of JSON: braces and unneeded quotes.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}
