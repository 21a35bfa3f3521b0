//go:build !faultpoints

package fault

// Point does nothing in this build.
func Point(area, name, when string) {}
