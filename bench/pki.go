package main

import (
	"crypto/tls"
	"os"
	"path/filepath"

	"miren.dev/runtime/pkg/rpc/identity"
)

// serverTLS is for children; dir has the authority.
func serverTLS(dir string) (*tls.Config, error) {
	ca, err := identity.Open(dir)
	if err != nil {
		return nil, err
	}
	return ca.ServerTLS()
}

// clientTLS returns the client side's configuration.
func clientTLS(dir string) (*tls.Config, error) {
	var pem [3][]byte
	for i, name := range []string{"ca.pem", "client.pem", "client.key"} {
		var err error
		if pem[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return identity.ClientTLS(pem[0], pem[1], pem[2], "127.0.0.1")
}
