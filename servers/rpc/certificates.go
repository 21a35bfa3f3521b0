package rpcserver

import (
	"context"
	"slices"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// certificateHandler serves certificate.Certificates.
type certificateHandler struct{ certificates *certificates.Service }

// Certificates serves s to its callers.
func Certificates(s *certificates.Service) certificate.Certificates { return &certificateHandler{s} }

func (h *certificateHandler) Set(ctx context.Context, req *certificate.SetCertificateRequest) (*certificate.CertificateResponse, error) {
	c, err := h.certificates.Set(ctx, req.Project, req.Certificate, req.Chain, req.Key)
	if err != nil {
		return nil, err
	}
	rec, err := record(c)
	return &certificate.CertificateResponse{Certificate: rec}, err
}

func (h *certificateHandler) Delete(ctx context.Context, req *certificate.CertificateRequest) error {
	return h.certificates.Delete(ctx, req.Project, req.Certificate)
}

func (h *certificateHandler) Renew(ctx context.Context, req *certificate.RenewRequest) (*certificate.RenewResponse, error) {
	o, err := h.certificates.Renew(ctx, req.Project, req.Host)
	if err != nil {
		return nil, err
	}
	rec, err := record(o)
	return &certificate.RenewResponse{Order: rec}, err
}

// Served answers the process of the ingress alone. Other callers are refused,
// administrators and certificates with its role too.
func (h *certificateHandler) Served(ctx context.Context, req *certificate.ServedRequest) (*certificate.ServedResponse, error) {
	if id := rpc.IdentityFrom(ctx); id.How != "socket" || !slices.Equal(id.Roles, []string{ingressRole}) {
		return nil, errs.New(errs.FailedPrecondition, "private keys are given to the ingress process only")
	}
	list, more, err := h.certificates.Served(ctx, req.After)
	if err != nil {
		return nil, err
	}
	return &certificate.ServedResponse{Certificates: list, More: more}, nil
}
