package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
)

// Fact is one thing that was found out about a source, with the file that decided it.
type Fact struct {
	What  string `json:"what"`           // version, install, build or start
	Value string `json:"value"`          // a version or a command
	From  string `json:"from,omitempty"` // file or setting that decided it; empty: a default
}

// What a Fact is about.
const (
	FactVersion = "version"
	FactInstall = "install"
	FactBuild   = "build"
	FactStart   = "start"
)

// fact notes what was found out; nothing for an empty value.
func (p *Plan) fact(what, value, from string) {
	if value = strings.TrimSpace(value); value != "" {
		p.Facts = append(p.Facts, Fact{what, value, from})
	}
}

// Standalone is a generated Dockerfile as a file of the folder: it says its port, and where it comes from.
func (p *Plan) Standalone() string {
	if !p.Generated {
		return p.Dockerfile
	}
	text := "# Written by `r app plan --write-dockerfile` for the stack " + p.Stack + ". Images named runtime/ are made by the server.\n" + p.Dockerfile
	for _, s := range p.Services {
		if s.Name == appconfig.DefaultService && s.Port != nil && *s.Port > 0 {
			text += fmt.Sprintf("EXPOSE %d\n", *s.Port)
		}
	}
	return text
}
