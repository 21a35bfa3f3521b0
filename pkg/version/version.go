// Package version says which build this is. hack/build.sh stamps the
// variables at link time; a plain `go build` leaves the defaults.
package version

import "runtime"

// Stamped by -ldflags -X.
var (
	Version = "0.0.0-dev"
	Commit  = "unknown"
	Date    = "unknown" // of the commit, RFC 3339
)

// Info is what `r version` prints.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
	Arch    string `json:"arch"`
}

// Get returns the build's information.
func Get() Info {
	return Info{Version: Version, Commit: Commit, Date: Date, Go: runtime.Version(), Arch: runtime.GOOS + "/" + runtime.GOARCH}
}
