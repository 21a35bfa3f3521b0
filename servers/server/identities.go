package server

import (
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// followRevocations keeps the revoked certificates in memory, and closes the
// connections that use one.
func (f *front) followRevocations() {
	informer.Of[core.ClientCertificate](f.c.informers).Handle(func(ch informer.Change[*core.ClientCertificate]) {
		if ch.New != nil && f.revocations.Put(ch.New) {
			f.rpc.Recheck()
		}
	})
}

// refuse is why an identity has no access any more.
func (f *front) refuse(id rpc.Identity) error {
	if id.Serial == "" {
		return nil
	}
	return f.revocations.Check(id.Name, id.Serial)
}

// IssueIdentity makes a client certificate.
func (f *front) IssueIdentity(ctx context.Context, req *server.IssueIdentityRequest) (*server.IssueIdentityResponse, error) {
	for _, r := range req.Roles {
		if !slices.Contains(rpc.DefaultRoles.Names(), r) {
			return nil, errs.New(errs.InvalidArgument, "there is no role %q", r).WithHint("roles are %v", rpc.DefaultRoles.Names())
		}
	}
	var ttl time.Duration
	if req.TTL != nil {
		ttl = *req.TTL
	}
	pair, err := f.ca.IssueClient(req.Name, req.Roles, ttl)
	if err != nil {
		return nil, err
	}
	cert, err := f.identities.Record(ctx, identities.Issued{
		Identity: req.Name, Serial: pair.Serial, Roles: req.Roles, By: rpc.IdentityFrom(ctx).Name, ExpiresAt: pair.ExpiresAt,
	})
	if err != nil {
		return nil, err
	}
	f.revocations.Put(cert)
	resp := &server.IssueIdentityResponse{
		Certificate: string(pair.Certificate), Key: string(pair.Key), CA: string(f.ca.CA()), Serial: pair.Serial, ExpiresAt: pair.ExpiresAt,
	}
	if a := f.address.Load(); a != nil {
		resp.Addresses = []string{*a}
	}
	return resp, nil
}

// RevokeIdentity revokes client certificates. Here it has taken effect when it
// returns; other servers of the store learn of it by their watch.
func (f *front) RevokeIdentity(ctx context.Context, req *server.RevokeIdentityRequest) (*server.RevokeIdentityResponse, error) {
	certs, err := f.identities.Revoke(ctx, req.Certificate, rpc.IdentityFrom(ctx).Name)
	if err != nil {
		return nil, err
	}
	resp := new(server.RevokeIdentityResponse)
	for _, c := range certs {
		f.c.logger.Info("certificate revoked", "identity", c.Spec.Identity, "serial", c.Spec.Serial, "by", c.Spec.RevokedBy)
		f.revocations.Put(c)
		rec, err := c.EntityKind().Encode(c)
		if err != nil {
			return nil, err
		}
		resp.Certificates = append(resp.Certificates, *rec)
	}
	f.rpc.Recheck()
	return resp, nil
}
