package nbd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// handshakeTime bounds everything before the first request of a connection.
const handshakeTime = 30 * time.Second

// LoadTLS reads a server's certificate from a directory laid out as nbdkit,
// qemu and libnbd have it: server-cert.pem, server-key.pem and ca-cert.pem.
// With clients, only those with a certificate of that CA are let in; without,
// every host that can connect is.
func LoadTLS(dir string, clients bool) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		return nil, loadFailed(err, dir)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if clients {
		pem, err := os.ReadFile(filepath.Join(dir, "ca-cert.pem"))
		if err != nil {
			return nil, loadFailed(err, dir)
		}
		cfg.ClientCAs, cfg.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, errs.New(errs.InvalidArgument, "%s has no certificate", filepath.Join(dir, "ca-cert.pem"))
		}
	}
	return cfg, nil
}

func loadFailed(err error, dir string) error {
	return errs.New(errs.FailedPrecondition, "load certificates: %w", err).
		WithHint("%s must hold server-cert.pem and server-key.pem, and ca-cert.pem if clients are to show a certificate", dir)
}

// startTLS answers NBD_OPT_STARTTLS. What was negotiated before is forgotten.
func (x *session) startTLS(ctx context.Context, data []byte) error {
	switch {
	case x.tls == nil:
		return x.reply(optStartTLS, repErrPolicy, []byte("this server has no TLS"))
	case len(data) != 0 || x.secure:
		return x.reply(optStartTLS, repErrInvalid, nil)
	case x.r.Buffered() > 0:
		// Sent before the answer: it would be taken for something sent under TLS.
		return errs.New(errs.InvalidArgument, "client sent plain bytes after asking for TLS")
	}
	if err := x.reply(optStartTLS, repAck, nil); err != nil {
		return err
	}
	c := tls.Server(x.c, x.tls)
	if err := c.HandshakeContext(ctx); err != nil {
		return errs.Wrap(err, "TLS handshake")
	}
	x.c, x.secure = c, true
	x.r.Reset(c)
	x.structured, x.hasStatus, x.status = false, false, ""
	return nil
}
