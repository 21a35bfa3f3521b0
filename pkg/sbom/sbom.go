// Package sbom lists the software in an image, as a software bill of materials in the form of CycloneDX.
//
// A Scan reads the layers of the image in their order and finds what package managers recorded in files: packages of
// Debian and Alpine, of npm, PyPI, RubyGems, Composer and Maven, and the modules of Go programs. A file of a later
// layer takes the place of an earlier one, and its deletion deletes. Software that was copied without such a record is
// not found, nor are the crates of a Rust program.
package sbom

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"

	"miren.dev/runtime/pkg/errs"
)

// Bounds of the files that a scan reads, in bytes. Larger ones are passed over.
const (
	maxRecord    = 16 << 20  // of a package manager
	maxProgram   = 512 << 20 // of a program or a Java archive, which go through a temporary file
	maxInner     = 64 << 20  // of a Java archive inside another one
	maxDirectory = 16 << 20  // of what an archive says of its files
	maxField     = 1 << 10   // of a name or a version
)

// Bounds of an image.
const (
	maxComponents = 500_000 // packages in all records
	maxLooked     = 1 << 30 // records that are compared with names of deleted files
)

// component is one found package.
type component struct {
	kind             string // type of its package URL
	namespace, name  string
	version          string
	architecture     string // empty: any
	ofTheDistributor bool   // its namespace is the distribution
}

// Scan collects the software in an image.
type Scan struct {
	below  map[string][]component // of earlier layers, by the path of the record
	found  map[string][]component // of the layer that is read
	system map[string]string      // of os-release

	components, looked int // towards maxComponents and maxLooked
}

// Layer reads the next layer, a tar stream without compression. An error is one of the stream: a record that cannot be
// read has no packages.
func (s *Scan) Layer(r io.Reader) error {
	if s.below == nil {
		s.below = map[string][]component{}
	}
	s.found = map[string][]component{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			maps.Copy(s.below, s.found)
			return nil
		}
		if err != nil {
			return errs.New(errs.Corrupt, "read layer: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if s.looked > maxLooked {
			return errs.New(errs.ResourceExhausted, "the image deletes too many files for a list of its software")
		}
		if s.deletes(name) || h.Typeflag == tar.TypeDir {
			continue
		}
		delete(s.below, name)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := s.file(name, h, tr); err != nil {
			return err
		}
	}
}

// Names that delete in a layer: a file or folder of earlier layers, and all that they have in a folder.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// deletes reports whether an entry is a deletion, and deletes.
func (s *Scan) deletes(name string) bool {
	dir, base := path.Split(name)
	gone, ok := strings.CutPrefix(base, whiteout)
	if !ok {
		return false
	}
	whole := dir + gone
	if base == opaque {
		whole = strings.TrimSuffix(dir, "/")
	}
	s.looked += len(s.below)
	maps.DeleteFunc(s.below, func(p string, _ []component) bool { return p == whole || strings.HasPrefix(p, whole+"/") })
	return true
}

func (s *Scan) file(name string, h *tar.Header, r io.Reader) error {
	if name == "etc/os-release" || name == "usr/lib/os-release" {
		body, err := io.ReadAll(io.LimitReader(r, maxRecord))
		if err != nil {
			return errs.New(errs.Corrupt, "read %s: %w", name, err)
		}
		s.system = variables(body)
		return nil
	}
	for _, k := range records {
		if !k.match(name) || h.Size > maxRecord {
			continue
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return errs.New(errs.Corrupt, "read %s: %w", name, err)
		}
		return s.add(name, k.read(name, body))
	}
	if h.Size > maxProgram || h.Size < 64 {
		return nil
	}
	archive := path.Ext(name) == ".jar" || path.Ext(name) == ".war"
	if !archive && h.Mode&0o111 == 0 {
		return nil
	}
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return errs.New(errs.Corrupt, "read %s: %w", name, err)
	}
	if !archive && string(magic[:]) != "\x7fELF" {
		return nil
	}
	f, err := os.CreateTemp("", "sbom-")
	if err != nil {
		return errs.New(errs.Unavailable, "temporary file: %w", err)
	}
	defer func() {
		f.Close()
		_ = os.Remove(f.Name())
	}()
	n, err := io.Copy(f, io.MultiReader(bytes.NewReader(magic[:]), r))
	if err != nil {
		return errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	if !archive {
		return s.add(name, goProgram(f))
	}
	left := int64(maxProgram)
	return s.add(name, javaArchive(path.Base(name), f, n, &left, false))
}

func (s *Scan) add(name string, all []component) error {
	if s.components += len(all); s.components > maxComponents {
		return errs.New(errs.ResourceExhausted, "the image records more than %d packages", maxComponents)
	}
	var kept []component
	for _, c := range all {
		if c.name == "" || c.version == "" || max(len(c.name), len(c.version), len(c.namespace), len(c.architecture)) > maxField {
			continue
		}
		// Not parts of the record, which they would keep in memory.
		c.name, c.version, c.namespace, c.architecture = strings.Clone(c.name), strings.Clone(c.version), strings.Clone(c.namespace), strings.Clone(c.architecture)
		kept = append(kept, c)
	}
	if len(kept) > 0 {
		s.found[name] = kept
	}
	return nil
}

// Write writes the list for an image of a name and version, as JSON. The same image gives the same bytes. A package
// that several records name is in the list once, with the path of each.
func (s *Scan) Write(w io.Writer, name, version string) error {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{BOMRef: name, Type: cyclonedx.ComponentTypeContainer, Name: name, Version: version}}
	components := []cyclonedx.Component{}
	if id := s.system["ID"]; id != "" {
		components = append(components, cyclonedx.Component{BOMRef: "system:" + id, Type: cyclonedx.ComponentTypeOS, Name: id,
			Version: s.system["VERSION_ID"], Description: s.system["PRETTY_NAME"]})
	}
	at := map[string][]string{} // paths by package URL
	by := map[string]component{}
	for p, list := range s.below {
		for _, c := range list {
			url := s.url(c)
			by[url] = c
			if !slices.Contains(at[url], p) {
				at[url] = append(at[url], p)
			}
		}
	}
	for url, c := range by {
		found := []cyclonedx.EvidenceOccurrence{}
		slices.Sort(at[url])
		for _, p := range at[url] {
			found = append(found, cyclonedx.EvidenceOccurrence{Location: "/" + p})
		}
		components = append(components, cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Group: c.namespace,
			Name: c.name, Version: c.version, PackageURL: url, Evidence: &cyclonedx.Evidence{Occurrences: &found}})
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.BOMRef, b.BOMRef))
	})
	slices.SortStableFunc(components, func(a, b cyclonedx.Component) int { // the system first
		return cmp.Compare(order(a), order(b))
	})
	bom.Components = &components
	if err := cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("write the list of software: %w", err)
	}
	return nil
}

func order(c cyclonedx.Component) int {
	if c.Type == cyclonedx.ComponentTypeOS {
		return 0
	}
	return 1
}

// url is the package URL of a component.
func (s *Scan) url(c component) string {
	var q packageurl.Qualifiers
	if c.architecture != "" {
		q = append(q, packageurl.Qualifier{Key: "arch", Value: c.architecture})
	}
	if c.ofTheDistributor {
		c.namespace = s.system["ID"]
		if name := cmp.Or(s.system["VERSION_CODENAME"], s.system["VERSION_ID"]); name != "" {
			q = append(q, packageurl.Qualifier{Key: "distro", Value: name})
		}
	}
	return packageurl.NewPackageURL(c.kind, c.namespace, c.name, c.version, q, "").ToString()
}
