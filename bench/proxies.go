package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
)

// The apps that the ingress has in front of the backend: HTTP for one, HTTPS alone for the other, which has a certificate.
const (
	plainApp  = "shop"
	secureApp = "secure"
)

// connections are the numbers of connections that are compared.
var connections = []int{1, 16, 64}

// The peers in front of the backend.
const (
	reversePeer = "ReverseProxy"
	caddyPeer   = "Caddy"
)

func plainTarget(address string) target {
	return target{address: address, host: plainApp + ".localhost"}
}

func secureTarget(address string) target {
	host := secureApp + ".localhost"
	// The certificate is of this run; what checking it would cost is no part of a request.
	return target{address: address, host: host, tls: &tls.Config{ServerName: host, InsecureSkipVerify: true}}
}

func (t target) withHTTP2() target {
	t.h2 = true
	return t
}

// benchProxy compares the ingress process with the peers, in front of the same
// backend. The ingress reads a store in which the backend is a sandbox.
func benchProxy(ctx context.Context, b *bench) (err error) {
	backend, err := b.start(ctx, "backend")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.stop()) }()
	cert, key := b.scratch.path("secure.pem"), b.scratch.path("secure.key")
	if err := writeCertificate(secureTarget("").host, cert, key); err != nil {
		return err
	}
	dir := b.scratch.path("install-ingress")
	store, err := b.start(ctx, "store", "--dir", dir, "--pki", b.scratch.path("pki"), "--socket", "--certificate", cert, "--key", key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.stop()) }()
	in, err := instance.Find(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		return err
	}
	if err := describeApps(ctx, in, backend.address); err != nil {
		return err
	}
	address, secure, stop, err := b.startIngress(ctx, in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	proxy, err := b.start(ctx, "proxy", backend.address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.stop()) }()
	for _, conns := range connections {
		what := "requests, " + plural(conns, "connection")
		if err := requestRow(ctx, b, what, reversePeer, conns, plainTarget(address), plainTarget(proxy.address), 1.0, nil); err != nil {
			return err
		}
	}
	secureProxy, err := b.start(ctx, "proxy", backend.address, cert, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, secureProxy.stop()) }()
	if err := compareSecure(ctx, b, secure, reversePeer, secureProxy.address, 0); err != nil {
		return err
	}
	caddy, err := b.startCaddy(ctx, backend.address, cert, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, caddy.stop()) }()
	return compareSecure(ctx, b, secure, caddyPeer, caddy.address, 1.1)
}

// compareSecure compares HTTPS by HTTP/1.1 and by HTTP/2. With one connection there is no goal: it measures waiting.
func compareSecure(ctx context.Context, b *bench, ours, peerName, peer string, goal float64) error {
	for _, conns := range connections {
		least := goal
		if conns == 1 {
			least = 0
		}
		what := fmt.Sprintf("HTTPS requests, %s, beside %s", plural(conns, "connection"), peerName)
		if err := requestRow(ctx, b, what, peerName, conns, secureTarget(ours), secureTarget(peer), least, nil); err != nil {
			return err
		}
	}
	for _, conns := range []int{1, 4} {
		what := fmt.Sprintf("HTTP/2 requests, %s of %d streams, beside %s", plural(conns, "connection"), h2Streams, peerName)
		if err := requestRow(ctx, b, what, peerName, conns, secureTarget(ours).withHTTP2(), secureTarget(peer).withHTTP2(), goal, nil); err != nil {
			return err
		}
	}
	return nil
}

// describeApps writes the apps whose sandbox is the backend.
func describeApps(ctx context.Context, in *instance.Instance, backend string) error {
	cl, err := rpc.Dial(ctx, in.Socket("server.sock"), rpc.ClientOptions{})
	if err != nil {
		return err
	}
	defer cl.Close()
	st := remote.New(cl)
	project := core.ProjectKind.New().(*core.Project)
	project.Name = "default"
	if err := entity.Create(ctx, st, project); err != nil {
		return err
	}
	node := core.NewNode() // an ingress sends requests to the sandboxes of its own node
	node.Name, node.Spec.Arch, node.Spec.CPUMillis, node.Spec.MemoryBytes = "bench", runtime.GOARCH, 1000, 1<<30
	if err := entity.Create(ctx, st, node); err != nil {
		return err
	}
	if err := os.WriteFile(in.State("node-id"), []byte(node.ID), 0o644); err != nil {
		return err
	}
	for _, name := range []string{plainApp, secureApp} {
		if err := describeBackend(ctx, st, node, project, name, backend); err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate makes a certificate for host that signs itself, and its key.
func writeCertificate(host, cert, key string) error {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain}), 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

// ownCertificate gives the ingress the certificate of the run, as the server does.
type ownCertificate struct {
	certificate.Certificates // the ingress calls Served alone
	store                    entity.Store
	chain, key               []byte
}

func (s *ownCertificate) Served(ctx context.Context, _ *certificate.ServedRequest) (*certificate.ServedResponse, error) {
	projects, _, err := entity.List[core.Project](ctx, s.store, entity.Query{})
	if err != nil || len(projects) == 0 {
		return &certificate.ServedResponse{}, err
	}
	return &certificate.ServedResponse{Certificates: []certificate.ServedCertificate{{
		ID: "certificate", Project: string(projects[0].ID), Chain: string(s.chain), Key: string(s.key),
	}}}, nil
}

// caddyFile is Caddy's configuration: like the other peer it keeps as many connections to the backend as are used, and
// writes no log of requests.
const caddyFile = `{
	admin off
	auto_https off
	servers {
		protocols h1 h2
	}
}
https://%[1]s {
	bind 127.0.0.1
	tls %[3]s %[4]s
	reverse_proxy %[2]s {
		transport http {
			keepalive_idle_conns 1024
			keepalive_idle_conns_per_host 1024
		}
	}
}
`

// startCaddy runs Caddy, in the version of hack/toolchain/caddy.
func (b *bench) startCaddy(ctx context.Context, backend, cert, key string) (*process, error) {
	free, err := freeURL("https")
	if err != nil {
		return nil, err
	}
	file := b.scratch.path("Caddyfile")
	site := net.JoinHostPort(secureTarget("").host, free.Port())
	if err := os.WriteFile(file, fmt.Appendf(nil, caddyFile, site, backend, cert, key), 0o600); err != nil {
		return nil, err
	}
	return b.start(ctx, "peer", "", free.Host, filepath.Join(b.opt.bin, "caddy"), "run", "--adapter", "caddyfile", "--config", file)
}

// backendChild answers everything with 200 bytes.
func backendChild(ctx context.Context, _ []string, ready func(string)) error {
	body := []byte(strings.Repeat("x", 200))
	return serveHTTP(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(body)
	}), ready)
}

// proxyChild is the standard library's proxy, tuned for speed. Its arguments are the backend, and for HTTPS the files
// of certificate and key.
func proxyChild(ctx context.Context, args []string, ready func(string)) error {
	target := &url.URL{Scheme: "http", Host: args[0]}
	pool := &bufferPool{}
	pool.p.New = func() any { return make([]byte, 32<<10) }
	return serveHTTP(ctx, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Minute,
			DisableCompression: true, ReadBufferSize: 8 << 10, WriteBufferSize: 8 << 10},
		BufferPool: pool,
	}, ready, args[1:]...)
}

// serveHTTP serves by HTTPS if it gets the files of certificate and key.
func serveHTTP(ctx context.Context, h http.Handler, ready func(string), keys ...string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	ready(l.Addr().String())
	serve := srv.Serve
	if len(keys) == 2 {
		serve = func(l net.Listener) error { return srv.ServeTLS(l, keys[0], keys[1]) }
	}
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type bufferPool struct{ p sync.Pool }

func (b *bufferPool) Get() []byte { return b.p.Get().([]byte) }

//lint:ignore SA6002 the interface of httputil has slices
func (b *bufferPool) Put(p []byte) { b.p.Put(p) }
