package schema

import "bytes"

// CompositePrefix goes before the name of a composite index in IndexEntry.Attr.
const CompositePrefix = "index."

// Index describes a composite index of a kind: its entities in the order of
// several attributes. Every entity is in it; a value that an entity does not
// have is less than every other.
type Index struct {
	Name  string
	Parts []IndexPart
}

// IndexPart is one attribute of a composite index.
type IndexPart struct {
	Attr string // "spec.priority"
	Desc bool   // greatest first
}

// Attr returns the name of the index in IndexEntry.Attr.
func (x *Index) Attr() string { return CompositePrefix + x.Name }

// Encode encodes the values of all parts, or of the first ones; each value
// comes from EncodeIndex*, or is nil if there is none. The encoding of an
// entity with these values begins with the result.
func (x *Index) Encode(vals ...[]byte) []byte {
	var out []byte
	for i, v := range vals {
		out = appendPart(out, v, x.Parts[i].Desc)
	}
	return out
}

// Range returns the encodings lo <= e < hi of the entities whose first parts
// equal vals and whose next part is >= lower and < upper. A nil bound means no
// bound; so does a nil hi.
func (x *Index) Range(vals [][]byte, lower, upper []byte) (lo, hi []byte) {
	lo = x.Encode(vals...)
	hi = prefixEnd(lo)
	if lower == nil && upper == nil {
		return lo, hi
	}
	desc := x.Parts[len(vals)].Desc
	if desc {
		// Greater values come first: from just after upper to lower itself.
		if upper != nil {
			lo = prefixEnd(appendPart(bytes.Clone(lo), upper, true))
		}
		if lower != nil {
			hi = prefixEnd(appendPart(x.Encode(vals...), lower, true))
		}
		return lo, hi
	}
	if upper != nil {
		hi = appendPart(bytes.Clone(lo), upper, false)
	}
	if lower != nil {
		lo = appendPart(lo, lower, false)
	}
	return lo, hi
}

// Bytes of the encoding. A part is either absent, or its value with every zero
// byte escaped and an end mark. So no part is a prefix of another, and parts
// order as their values do. The bytes of a descending part are inverted.
const (
	partAbsent  = 0x00
	partPresent = 0x01
	partEscape  = 0xff // after a zero byte: the zero belongs to the value
	partEnd     = 0x01 // after a zero byte: the value ends
)

func appendPart(dst, v []byte, desc bool) []byte {
	start := len(dst)
	if v == nil {
		dst = append(dst, partAbsent)
	} else {
		dst = append(dst, partPresent)
		for _, c := range v {
			if dst = append(dst, c); c == 0 {
				dst = append(dst, partEscape)
			}
		}
		dst = append(dst, 0, partEnd)
	}
	if desc {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

// prefixEnd returns the smallest value above every value that begins with p,
// nil if there is none.
func prefixEnd(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] != 0xff {
			end := bytes.Clone(p[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}

// AddComposite adds the values of a composite index, nil for those that the
// entity does not have. It is for generated code.
func (e *Extracted) AddComposite(x *Index, vals ...[]byte) {
	e.AddIndex(x.Attr(), x.Encode(vals...))
}

// Composite returns the composite index of a name, nil if there is none.
func (k *Kind) Composite(name string) *Index {
	for _, x := range k.Indexes {
		if x.Name == name {
			return x
		}
	}
	return nil
}
