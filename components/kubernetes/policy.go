package kubernetes

import (
	"context"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// closedNetworks are what sandboxes do not reach, as with the driver runsc:
// private, shared and link-local networks, and with those the metadata services.
var closedNetworks = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"}

func (d *Driver) policyName() string { return "rt-" + d.cfg.Instance.ID }

// writePolicy makes the network policy of all sandboxes: public IPv4 addresses, and
// name servers. It holds where the cluster's network enforces policies.
func (d *Driver) writePolicy(ctx context.Context) error {
	udp, tcp, dns := v1.ProtocolUDP, v1.ProtocolTCP, intstr.FromInt32(53)
	want := &networking.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: d.policyName(), Namespace: d.cfg.Namespace, Labels: map[string]string{LabelInstance: d.cfg.Instance.ID}},
		Spec: networking.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{LabelInstance: d.cfg.Instance.ID}},
			PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress},
			Egress: []networking.NetworkPolicyEgressRule{
				{To: []networking.NetworkPolicyPeer{{IPBlock: &networking.IPBlock{CIDR: "0.0.0.0/0", Except: closedNetworks}}}},
				{Ports: []networking.NetworkPolicyPort{{Protocol: &udp, Port: &dns}, {Protocol: &tcp, Port: &dns}}},
			},
		},
	}
	policies := d.api.policies
	have, err := policies.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = policies.Create(ctx, want, metav1.CreateOptions{})
	case err == nil:
		want.ResourceVersion = have.ResourceVersion
		_, err = policies.Update(ctx, want, metav1.UpdateOptions{})
	}
	return apiError(err, "network policy %s", want.Name)
}

func (d *Driver) deletePolicy(ctx context.Context) error {
	err := d.api.policies.Delete(ctx, d.policyName(), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return apiError(err, "delete network policy %s", d.policyName())
}
