package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/trust"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	sshserver "miren.dev/runtime/servers/ssh"
)

// followRevocations keeps the revoked certificates in memory, and closes the
// connections that use one.
func (f *front) followRevocations() {
	informer.Of[core.ClientCertificate](f.c.informers).Handle(func(ch informer.Change[*core.ClientCertificate]) {
		if ch.New != nil && f.revocations.Put(ch.New) {
			f.rpc.Recheck()
			f.runners.rpc.Recheck()
		}
	})
}

// refuse returns the error for an identity that has no access any more.
func (f *front) refuse(id rpc.Identity) error {
	if id.How != rpc.HowKey {
		if err := f.users.Check(id.Name); err != nil {
			return err
		}
	}
	switch {
	case id.How == sshserver.HowKey:
		_, err := f.sshKeys.Find(id.Serial)
		return err
	case id.Key != "":
		return f.keys.Check(id)
	case id.Serial != "":
		return f.revocations.Check(id.Name, id.Serial)
	}
	return nil
}

// authenticate returns the identity of an API key, or of a token of OpenID Connect.
func (f *front) authenticate(ctx context.Context, credential string) (rpc.Identity, error) {
	if trust.IsToken(credential) {
		return f.trust.Authenticate(ctx, credential)
	}
	return f.keys.Authenticate(ctx, credential)
}

// projectOf returns the name of the project that a request concerns.
func (f *front) projectOf(ctx context.Context, t rpc.Target) (string, error) {
	if t.Kind == "" {
		return cmp.Or(t.Project, projects.Default), nil
	}
	return projects.Of(ctx, f.c.store, t.Kind, schema.ID(t.ID))
}

// checkRole refuses a role that does not exist, or that is bound to a project
// that does not exist.
func (f *front) checkRole(ctx context.Context, role string) error {
	name, project, bound := rpc.SplitRole(role)
	if !slices.Contains(rpc.DefaultRoles.Names(), name) {
		return errs.New(errs.InvalidArgument, "there is no role %q", name).WithHint("roles are %v", rpc.DefaultRoles.Names())
	}
	if !bound {
		return nil
	}
	if project == "" {
		return errs.New(errs.InvalidArgument, "role %q names no project", role).WithHint("%s@%s, or %s for all projects", name, projects.Default, name)
	}
	_, err := projects.Find(ctx, f.c.store, project)
	return err
}

// IssueIdentity makes a client certificate.
func (f *front) IssueIdentity(ctx context.Context, req *server.IssueIdentityRequest) (*server.IssueIdentityResponse, error) {
	for _, r := range req.Roles {
		if err := f.checkRole(ctx, r); err != nil {
			return nil, err
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

// RevokeIdentity revokes client certificates. When it returns, this server
// refuses them; other servers of the store learn of it by their watch.
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
	f.runners.rpc.Recheck()
	return resp, nil
}
