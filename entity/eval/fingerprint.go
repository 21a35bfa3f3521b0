package eval

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/schema"
)

// Fingerprint identifies the set of attributes that a kind has indexed or
// enforced.
func Fingerprint(k *schema.Kind) string {
	var lines []string
	for _, a := range k.Attrs {
		if a.Indexed || a.Unique || strings.HasPrefix(a.Type, "ref ") {
			lines = append(lines, fmt.Sprintf("%s %s %v %v", a.Path, a.Type, a.Indexed, a.Unique))
		}
	}
	for _, x := range k.Indexes {
		lines = append(lines, fmt.Sprintf("%s %v", x.Attr(), x.Parts))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}
