package stack

import (
	"strings"
	"testing"
)

func TestDockerfilePlans(t *testing.T) {
	checkPlans(t, "dockerfile", []planTest{
		{"Dockerfile", "-- Dockerfile --\nFROM debian\nEXPOSE 9000\nCMD [\"x\"]\n-- go.mod --\n", []string{"FROM debian"}, []string{"exposes port 9000"}, "web:9000:"},
		{"Dockerfile elsewhere", "-- deploy/Dockerfile --\nFROM scratch\n-- app.toml --\n[build]\ndockerfile = \"./deploy/Dockerfile\"\n", nil, []string{"deploy/Dockerfile"}, "web:8080:"},
		{"Dockerfile, inherited port", "-- Dockerfile --\nARG PORT=81\nFROM debian AS base\nEXPOSE 80/udp ${PORT}/tcp\nFROM base\nCMD x\n", nil, []string{"81"}, "web:81:"},
	})
}

func TestDockerfileBases(t *testing.T) {
	for name, tt := range map[string]struct{ text, target, want string }{
		"stages":         {"FROM golang:1.26 AS build\nFROM build AS more\nFROM debian:12\nCOPY --from=build /a /\n", "", "golang:1.26 debian:12"},
		"arguments":      {"ARG V=1.25\nARG I=golang:${V}\nFROM ${I}\n", "", "golang:1.25"},
		"platform":       {"FROM --platform=$BUILDPLATFORM node:22\n", "", "node:22"},
		"copy and mount": {"FROM scratch\nCOPY --from=busybox /x /\nRUN --mount=type=bind,from=python:3,target=/p true\n", "", "busybox python:3"},
		"number":         {"FROM debian\nFROM scratch\nCOPY --from=0 /x /\n", "", "debian"},
		"target":         {"FROM debian AS a\nFROM node AS b\n", "a", "debian"},
		"once":           {"FROM debian AS a\nFROM debian AS b\n", "", "debian"},
		"like a stage":   {"FROM debian AS debian\nFROM debian\n", "", "debian"},
		"later stage":    {"FROM node AS a\nFROM scratch AS node\n", "", "node"},
	} {
		d, err := parseDockerfile(tt.text, nil, tt.target)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.Join(d.bases, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func FuzzDockerfile(f *testing.F) {
	f.Add("ARG A=x\nFROM $A AS b\nCOPY --from=c / /\nEXPOSE 1-2\n")
	f.Fuzz(func(t *testing.T, text string) { _, _ = parseDockerfile(text, nil, "") })
}
