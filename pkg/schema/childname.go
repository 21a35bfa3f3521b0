package schema

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// ChildName returns base-suffix, the name of an entity that belongs to the
// entity named base. A result longer than limit bytes is shortened, with a hash
// that keeps it apart from other names with the same beginning.
func ChildName(base, suffix string, limit int) string {
	name := base + "-" + suffix
	if len(name) <= limit {
		return name
	}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:8]
	if room := limit - len(sum) - len(suffix) - 2; room > 0 {
		return strings.TrimRight(base[:min(room, len(base))], "-") + "-" + sum + "-" + suffix
	}
	return strings.TrimRight(name[:limit-len(sum)-1], "-") + "-" + sum
}
