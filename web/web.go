// Package web has the files of the dashboard, which servers/dashboard serves.
// They are what the browser loads: modules of JavaScript without a build step.
// Libraries are in static/vendor, which hack/web.sh fills.
package web

import (
	"embed"
	"io/fs"
)

//go:embed static
var static embed.FS

// Files returns the files, index.html at the top.
func Files() fs.FS {
	sub, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}
