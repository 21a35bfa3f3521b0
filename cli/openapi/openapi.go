// Package openapi has `r openapi`.
package openapi

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/sdk"
)

type options struct {
	*command.Env
	url    string
	output string
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "openapi",
		Short: "Print the OpenAPI document of the REST API",
		Long: `Prints the OpenAPI 3.1 document of the REST API of this version, as JSON, without a server. A server has that of its
own version at /api/v1/openapi.json.`,
		Example: "  r openapi --output openapi.json\n  r openapi --url https://runtime.example.com:7444",
		Args:    command.Args(0, 0),
		RunE:    func(*cobra.Command, []string) error { return o.run() },
	}
	cmd.Flags().StringVar(&o.url, "url", "", "address of the API listener to name in the document: https://HOST:PORT")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "write to this file instead of standard output")
	return cmd
}

func (o *options) run() error {
	doc := sdk.OpenAPI
	if o.url != "" {
		var err error
		if doc, err = at(doc, o.url); err != nil {
			return err
		}
	}
	if o.output == "" {
		_, err := o.Out.Write(doc)
		return err
	}
	if err := os.WriteFile(o.output, doc, 0o644); err != nil {
		return errs.New(errs.Unavailable, "write the document: %w", err)
	}
	o.Notef("wrote %s\n", o.output)
	return nil
}

// at returns the document with the address of a server before the path of its
// operations.
func at(doc []byte, address string) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return nil, exit.Usagef("--url %q: give it as https://HOST:PORT", address)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(doc, &top); err != nil {
		return nil, err
	}
	var servers []struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(top["servers"], &servers); err != nil {
		return nil, err
	}
	for i := range servers {
		servers[i].URL = strings.TrimSuffix(address, "/") + servers[i].URL
	}
	if top["servers"], err = json.Marshal(servers); err != nil {
		return nil, err
	}
	text, err := json.Marshal(top)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Indent(&b, text, "", "  ")
	b.WriteByte('\n')
	return b.Bytes(), err
}
