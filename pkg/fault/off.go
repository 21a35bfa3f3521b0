//go:build !faultpoints

package fault

// Enabled reports whether this build has fault points.
const Enabled = false

// Point does nothing in this build.
func Point(area, name, when string) {}
