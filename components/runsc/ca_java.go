package runsc

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"unicode/utf16"

	"miren.dev/runtime/pkg/errs"
)

// javaCAPath is where Debian's and Ubuntu's Java has its trusted certificates, which
// reads no other file and no variable.
const javaCAPath = "/etc/ssl/certs/java/cacerts"

// Java's key store (JKS), in the order of bytes of the network: magic, version, number of entries, the entries, and the
// SHA-1 of a password, a salt and all of that. An entry is a tag, an alias, a time in ms, and a certificate with its
// type; strings have a length of 16 bits.
const (
	jksMagic       = 0xFEEDFEED
	jksVersion     = 2
	jksCertificate = 2 // tag of a trusted certificate
	jksHeader      = 12
	jksPassword    = "changeit" // the customary one, that programs give
	jksSalt        = "Mighty Aphrodite"
)

var errNoJKS = errs.New(errs.InvalidArgument, "not a key store with certificates only")

// jksEntries returns the entries of a key store and the certificates in them.
func jksEntries(store []byte) (count uint32, entries []byte, certificates map[string]bool, err error) {
	if len(store) < jksHeader+sha1.Size || binary.BigEndian.Uint32(store) != jksMagic || binary.BigEndian.Uint32(store[4:]) != jksVersion {
		return 0, nil, nil, errNoJKS
	}
	count = binary.BigEndian.Uint32(store[8:])
	entries = store[jksHeader : len(store)-sha1.Size]
	certificates = map[string]bool{}
	rest := entries
	take := func(n uint32) []byte {
		if uint64(n) > uint64(len(rest)) {
			err = errNoJKS
			rest = nil
			return make([]byte, 8)
		}
		b := rest[:n]
		rest = rest[n:]
		return b
	}
	text := func() []byte { return take(uint32(binary.BigEndian.Uint16(take(2)))) }
	for range count {
		tag := binary.BigEndian.Uint32(take(4))
		text() // alias
		take(8)
		text() // type of the certificate
		der := take(binary.BigEndian.Uint32(take(4)))
		if err != nil || tag != jksCertificate {
			return 0, nil, nil, errNoJKS
		}
		certificates[string(der)] = true
	}
	if len(rest) > 0 {
		return 0, nil, nil, errNoJKS
	}
	return count, entries, certificates, nil
}

// addToJKS returns a key store with the certificates of a bundle added that it lacks.
func addToJKS(store, bundle []byte) ([]byte, error) {
	count, entries, have, err := jksEntries(store)
	if err != nil {
		return nil, err
	}
	var added bytes.Buffer
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || have[string(block.Bytes)] {
			continue
		}
		have[string(block.Bytes)] = true
		b := binary.BigEndian.AppendUint32(nil, jksCertificate)
		for i, s := range []string{fmt.Sprintf("host:%d", count), "X.509"} {
			b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
			b = append(b, s...)
			if i == 0 {
				b = append(b, make([]byte, 8)...) // no time
			}
		}
		b = binary.BigEndian.AppendUint32(b, uint32(len(block.Bytes)))
		added.Write(append(b, block.Bytes...))
		count++
	}
	out := binary.BigEndian.AppendUint32(nil, jksMagic)
	out = binary.BigEndian.AppendUint32(out, jksVersion)
	out = binary.BigEndian.AppendUint32(out, count)
	out = append(append(out, entries...), added.Bytes()...)
	h := sha1.New()
	for _, c := range utf16.Encode([]rune(jksPassword)) {
		_ = binary.Write(h, binary.BigEndian, c)
	}
	h.Write([]byte(jksSalt))
	h.Write(out)
	return h.Sum(out), nil
}
