// Package opt has pointers that stand for fields which may be absent.
package opt

// Of returns nil, an absent field, for the zero value.
func Of[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Value returns the zero value for a field that is absent.
func Value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
