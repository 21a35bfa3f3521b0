// Command bom writes a bill of materials in CycloneDX: the Go modules that are in
// programs, as their linker recorded them.
//
//	bom -name NAME -version VERSION -time SECONDS -o FILE PROGRAM...
//
// Programs that are not Go's are named with their hash only. The same programs
// give the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("name", "", "what the programs are")
	version := flag.String("version", "", "its version")
	at := flag.Int64("time", 0, "when it was made, in seconds since 1970")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if *name == "" || *out == "" || flag.NArg() == 0 {
		return fmt.Errorf("usage: bom -name NAME -version VERSION -time SECONDS -o FILE PROGRAM")
	}
	bom, err := describe(*name, *version, time.Unix(*at, 0).UTC(), flag.Args())
	if err != nil {
		return err
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	if err := cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// describe lists the programs, each with the modules that it depends on.
func describe(name, version string, at time.Time, programs []string) (*cyclonedx.BOM, error) {
	root := cyclonedx.Component{BOMRef: name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: version}
	modules := map[string]cyclonedx.Component{}
	var components []cyclonedx.Component
	dependencies := []cyclonedx.Dependency{{Ref: root.BOMRef}}
	var of []string
	for _, path := range programs {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		program := cyclonedx.Component{BOMRef: "program:" + filepath.Base(path), Type: cyclonedx.ComponentTypeApplication, Name: filepath.Base(path),
			Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}}
		of = append(of, program.BOMRef)
		components = append(components, program)
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			continue // a program without Go's record
		}
		var refs []string
		for _, m := range append([]*debug.Module{&info.Main, {Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...) {
			c := module(m)
			refs = append(refs, c.BOMRef)
			modules[c.BOMRef] = c
		}
		slices.Sort(refs)
		refs = slices.Compact(refs)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: program.BOMRef, Dependencies: &refs})
	}
	dependencies[0].Dependencies = &of
	for _, m := range modules {
		components = append(components, m)
	}
	slices.SortStableFunc(components[len(programs):], func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: at.Format(time.RFC3339), Component: &root}
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom, nil
}

// module describes a module as it was linked: what replaces it, if it is replaced.
func module(m *debug.Module) cyclonedx.Component {
	// A directory replaces gVisor's module: its own content with a table added.
	if r := m.Replace; r != nil && r.Version != "" {
		m = r
	}
	purl := "pkg:golang/" + m.Path
	if m.Version != "" && m.Version != "(devel)" {
		purl += "@" + m.Version
	}
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
}
