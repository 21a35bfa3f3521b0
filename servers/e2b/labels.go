package e2b

import (
	"encoding/base32"
	"math"
	"regexp"
	"strings"
	"time"
)

// Labels of sandboxes and of versions of templates. The metadata of E2B's clients is in labels too, so that
// the store can select by it. A key that cannot be a label is encoded.
const (
	labelTemplate   = "e2b/template"    // as the client named it; all sandboxes of clients have it
	labelAutoResume = "e2b/auto-resume" // "true": its use continues it if it is paused
	labelBuild      = "e2b/build"       // of versions of templates: the build that clients know
	labelPlain      = "e2b/metadata/"
	labelEncoded    = "e2b/metadata32/"
)

var (
	plainKey = regexp.MustCompile(`^[a-z0-9._-]*[a-z0-9]$`)
	encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

func labelOf(key string) string {
	if plainKey.MatchString(key) {
		return labelPlain + key
	}
	return labelEncoded + encoding.EncodeToString([]byte(key))
}

func labelsOf(metadata map[string]string) map[string]string {
	labels := map[string]string{}
	for k, v := range metadata {
		labels[labelOf(k)] = v
	}
	return labels
}

// metadataOf is the reverse of labelsOf.
func metadataOf(labels map[string]string) map[string]string {
	metadata := map[string]string{}
	for k, v := range labels {
		if key, ok := strings.CutPrefix(k, labelPlain); ok {
			metadata[key] = v
		} else if key, ok := strings.CutPrefix(k, labelEncoded); ok {
			if b, err := encoding.DecodeString(key); err == nil {
				metadata[string(b)] = v
			}
		}
	}
	return metadata
}

// ttl returns a time to live; E2B's clients may ask for none at all, which ends
// the sandbox at once. RPC refuses one that is too long.
func ttl(seconds int64) time.Duration {
	return time.Duration(min(max(1, seconds), math.MaxInt64/int64(time.Second))) * time.Second
}
