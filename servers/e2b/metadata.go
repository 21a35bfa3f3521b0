package e2b

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// Metadata of files is what their extended attributes user.e2b.KEY say, whoever
// set them. Clients send it with an upload, as headers.
const (
	metadataHeader    = "x-metadata-"
	metadataAttribute = "e2b."
)

// Bounds of the metadata of a file: keys, bytes of a key, bytes of all keys and values.
const (
	maxMetadata      = 64
	maxMetadataKey   = 128
	maxMetadataBytes = 32 << 10
)

// uploadMetadata returns the metadata that a request states. Keys are in lower
// case.
func uploadMetadata(h http.Header) (map[string]string, error) {
	metadata := map[string]string{}
	size := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), metadataHeader)
		if !ok || key == "" {
			continue
		}
		value := values[0]
		if len(key) > maxMetadataKey {
			return nil, errs.New(errs.InvalidArgument, "a key of metadata has %d bytes, which is more than %d", len(key), maxMetadataKey)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, errs.New(errs.InvalidArgument, "the value of metadata %q is not printable US-ASCII", key)
		}
		metadata[key] = value
		size += len(key) + len(value)
	}
	if len(metadata) > maxMetadata || size > maxMetadataBytes {
		return nil, errs.New(errs.InvalidArgument, "the metadata has %d keys and %d bytes, and may have %d and %d", len(metadata), size, maxMetadata, maxMetadataBytes)
	}
	return metadata, nil
}

// setMetadata sets the metadata of a file that has none.
func (g *guest) setMetadata(ctx context.Context, p string, metadata map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		req := &sandbox.SetAttributeRequest{Sandbox: g.sb.GetID(), Path: p, User: g.user, Name: metadataAttribute + key, Value: []byte(metadata[key])}
		if err := g.files.SetAttribute(ctx, req); err != nil {
			return errs.New(errs.ClassOf(err), "the file %s is written, but not its metadata: %w", p, err)
		}
	}
	return nil
}

// attributes returns the extended attributes of a file or directory; none of one
// that the user may not read.
func (g *guest) attributes(ctx context.Context, p string, kind sandbox.FileType) ([]sandbox.FileAttribute, error) {
	if kind != sandbox.FileTypeFile && kind != sandbox.FileTypeDirectory {
		return nil, nil
	}
	a, err := g.files.Attributes(ctx, g.fileRequest(p))
	switch errs.ClassOf(err) {
	case "":
		return a.Attributes, nil
	case errs.FailedPrecondition, errs.InvalidArgument, errs.ResourceExhausted, errs.Unimplemented:
		return nil, nil // not permitted, none in this file system, more than can be listed, an older runner
	}
	return nil, err
}

// fileMetadata returns the metadata of a file; nil if it has none.
func fileMetadata(attributes []sandbox.FileAttribute) map[string]string {
	var metadata map[string]string
	for _, a := range attributes {
		if key, ok := strings.CutPrefix(a.Name, metadataAttribute); ok {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = string(a.Value)
		}
	}
	return metadata
}
