package runsc

import (
	"bytes"
	"encoding/pem"
	"testing"
)

// emptyJKS has no entry; its sum is not looked at.
var emptyJKS = append([]byte{0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 0}, make([]byte, 20)...)

func bundleOf(certificates ...string) []byte {
	var b bytes.Buffer
	for _, c := range certificates {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(c)})
	}
	return b.Bytes()
}

func TestCertificatesAreAddedToJKSOnce(t *testing.T) {
	first, err := addToJKS(emptyJKS, bundleOf("one", "two", "one"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := addToJKS(first, bundleOf("two", "three"))
	if err != nil {
		t.Fatal(err)
	}
	count, _, have, err := jksEntries(second)
	if err != nil || count != 3 || !have["one"] || !have["two"] || !have["three"] {
		t.Errorf("%d entries %v, %v", count, have, err)
	}
	same, err := addToJKS(second, bundleOf("three"))
	if err != nil || !bytes.Equal(same, second) {
		t.Errorf("a store that has all certificates is changed: %v", err)
	}
}

func TestOtherFilesAreNoJKS(t *testing.T) {
	whole, err := addToJKS(emptyJKS, bundleOf("one", "two"))
	if err != nil {
		t.Fatal(err)
	}
	key := bytes.Clone(whole)
	key[15] = 1 // the tag of a private key
	for name, b := range map[string][]byte{"empty": nil, "PKCS #12": append([]byte{0x30, 0x82}, make([]byte, 100)...), "key": key, "more": append(bytes.Clone(whole), 0)} {
		if _, err := addToJKS(b, bundleOf("x")); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for n := range len(whole) {
		if _, err := addToJKS(whole[:n], nil); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(whole))
		}
	}
}
