package server

import (
	"testing"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/tlstest"
)

// TestPrivateKeysAreForTheIngressOnly: not even root, or a certificate with the
// ingress's role, gets them.
func TestPrivateKeysAreForTheIngressOnly(t *testing.T) {
	e := newFrontEnv(t)
	x := e.newTenant("keys")
	chain, key := tlstest.New(t).Issue(t, "a.example.com")
	root := e.root()
	resp, err := certificate.NewCertificatesClient(root).Set(t.Context(), &certificate.SetCertificateRequest{Project: x.project, Certificate: "a", Chain: chain, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	pretender := e.holder(e.issue(root, "ingress", "ingress"))
	for who, cl := range map[string]*rpc.Client{"root": root, "a certificate with the role": pretender} {
		if r, err := certificate.NewCertificatesClient(cl).Served(t.Context(), &certificate.ServedRequest{}); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("%s: %+v %v", who, r, err)
		}
	}
	ingress := e.f.rpc.Local(ingressIdentity)
	defer ingress.Close()
	served, err := servedCertificates(t.Context(), certificate.NewCertificatesClient(ingress))
	if err != nil || len(served) != 1 || served[0].ID != resp.Certificate.ID || served[0].Project != x.projectID || served[0].Key != key {
		t.Errorf("%+v %v", served, err)
	}
}
