package certificates

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/tlstest"
)

func setup(t *testing.T) *Service {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	a := &apps.Service{Store: store, Logger: slog.New(slog.DiscardHandler)}
	for _, project := range []string{projects.Default, "theirs"} {
		if err := projects.Ensure(t.Context(), store, project); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Create(t.Context(), project, "shop"); err != nil {
			t.Fatal(err)
		}
	}
	return &Service{Store: store, Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key")), Routes: &routes.Service{Store: store, Apps: a}}
}

func TestCertificateIsReplacedAndDeleted(t *testing.T) {
	s, ca := setup(t), tlstest.New(t)
	chain, key := ca.Issue(t, "Shop.example.com", "*.shop.example.com")
	first, err := s.Set(t.Context(), "", "shop", chain, key)
	if err != nil || !slices.Equal(first.Spec.Names, []string{"*.shop.example.com", "shop.example.com"}) || first.Spec.Issuer != "CN=test authority" {
		t.Fatalf("%+v, %v", first, err)
	}
	if chain, key = ca.Issue(t, "shop.example.com"); err != nil {
		t.Fatal(err)
	}
	second, err := s.Set(t.Context(), "", "shop", chain, key)
	if err != nil || second.ID != first.ID || second.Spec.Fingerprint == first.Spec.Fingerprint {
		t.Fatalf("%+v, %v", second, err)
	}
	list, more, err := s.Served(t.Context(), "")
	if err != nil || more || len(list) != 1 || list[0].Chain != chain || list[0].Key != key || list[0].Created != int64(first.CreateRevision) {
		t.Errorf("%+v %v %v", list, more, err)
	}
	if err := s.Delete(t.Context(), "theirs", "shop"); !errs.Is(err, errs.NotFound) {
		t.Errorf("deleted by another project: %v", err)
	}
	if err := s.Delete(t.Context(), "", "shop"); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "", "shop"); !errs.Is(err, errs.NotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestHostOfACertificateBelongsToItsProject(t *testing.T) {
	s, ca := setup(t), tlstest.New(t)
	set := func(project, name string, hosts ...string) error {
		chain, key := ca.Issue(t, hosts...)
		_, err := s.Set(t.Context(), project, name, chain, key)
		return err
	}
	route := func(project, host string) error {
		_, err := s.Routes.Set(t.Context(), routes.SetRequest{Project: project, Host: host, App: "shop"})
		return err
	}
	for _, err := range []error{set("", "a", "a.example.com", "*.b.example.com"), route("theirs", "r.example.com"), route("", "own.a.example.com"), set("theirs", "r", "r.example.com")} {
		if err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"the certificate of another's certificate": set("theirs", "x", "fine.example.com", "a.example.com"),
		"a name below another's certificate":       set("theirs", "x", "x.b.example.com"),
		"all names of another's certificate":       set("theirs", "x", "*.example.com"),
		"the certificate of another's route":       set("", "x", "r.example.com"),
		"the route of another's certificate":       route("theirs", "a.example.com"),
		"a route below another's certificate":      route("theirs", "x.b.example.com"),
		"a route above another's certificate":      route("theirs", "*.example.com"),
	} {
		if !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestOneOfTwoProjectsGetsANameAtTheSameTime(t *testing.T) {
	s, ca := setup(t), tlstest.New(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			chain, key := ca.Issue(t, "a.example.com")
			if _, err := s.Set(t.Context(), []string{"", "theirs"}[i%2], "a", chain, key); err != nil && !errs.Is(err, errs.AlreadyExists) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, _, err := entity.List[certificate.Certificate](t.Context(), s.Store, entity.Query{})
	if err != nil || len(all) != 1 {
		t.Errorf("%d certificates, %v", len(all), err)
	}
}

func TestCertificateThatNoServerCanUseIsRefused(t *testing.T) {
	ca := tlstest.New(t)
	chain, key := ca.Issue(t, "a.example.com")
	other, otherKey := ca.Issue(t, "b.example.com")
	old, oldKey := ca.IssueFor(t, -time.Minute, "a.example.com")
	nameless, namelessKey := ca.Issue(t)
	bad, badKey := ca.Issue(t, "a.*.example.com")
	for want, pair := range map[string][2]string{
		"no certificate":        {"", key},
		"PRIVATE KEY":           {key + chain, key},
		"is not signed by":      {chain + other, key},
		"does not fit":          {chain, otherKey},
		"the key is not in PEM": {chain, "none"},
		"expired on":            {old, oldKey},
		"0 host names":          {nameless, namelessKey},
		"is not a host name":    {bad, badKey},
		"something that is not": {chain + "rest", key},
		"certificate 1 of the":  {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", key},
		"is longer than":        {strings.Repeat("x", certificate.MaxChain+1), key},
		"the chain has no":      {"x", key},
	} {
		_, err := parse(pair[0], pair[1], time.Now())
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), strings.Split(key, "\n")[1]) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := parse(chain+string(ca.PEM()), key, time.Now()); err != nil {
		t.Errorf("with its authority: %v", err)
	}
}
