// Package software prints lists of the software in an image.
package software

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
)

// Print prints a list that r reads as CycloneDX: as a table, or as it is with --json.
func Print(e *command.Env, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(json.RawMessage(b))
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal(b, &bom); err != nil || bom.Components == nil {
		return errs.New(errs.Corrupt, "the server's list of software cannot be read: %w", err)
	}
	var rows [][]string
	for _, c := range *bom.Components {
		name, at := c.Name, ""
		if c.Group != "" {
			name = c.Group + "/" + c.Name
		}
		if c.Evidence != nil && c.Evidence.Occurrences != nil && len(*c.Evidence.Occurrences) > 0 {
			at = (*c.Evidence.Occurrences)[0].Location
		}
		rows = append(rows, []string{kind(c), name, c.Version, at})
	}
	e.Table([]string{"TYPE", "NAME", "VERSION", "FOUND IN"}, rows)
	return nil
}

// kind is the type of a package URL: "deb" of "pkg:deb/debian/bash@5.2".
func kind(c cyclonedx.Component) string {
	if c.Type == cyclonedx.ComponentTypeOS {
		return "system"
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(c.PackageURL, "pkg:"), "/")
	return kind
}
