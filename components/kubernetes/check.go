package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// rights are what the driver's account must be allowed in the namespace.
var rights = []authorization.ResourceAttributes{
	{Resource: "pods", Verb: "get"}, {Resource: "pods", Verb: "list"}, {Resource: "pods", Verb: "watch"},
	{Resource: "pods", Verb: "create"}, {Resource: "pods", Verb: "delete"},
	{Resource: "pods", Subresource: "exec", Verb: "get"}, {Resource: "pods", Subresource: "exec", Verb: "create"},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Verb: "get"},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Verb: "create"},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Verb: "update"},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Verb: "delete"},
}

// check returns FailedPrecondition if pods cannot be made as configured, and
// Unavailable if the API server does not answer.
func (d *Driver) check(ctx context.Context) error {
	var missing []string
	for _, r := range rights {
		r.Namespace = d.cfg.Namespace
		review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		review, err := d.api.reviews.Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return apiError(err, "Kubernetes at %s", d.cfg.Cluster.Host)
		}
		if !review.Status.Allowed {
			name := strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/")
			missing = append(missing, r.Verb+" "+name)
		}
	}
	if len(missing) > 0 {
		return errs.New(errs.FailedPrecondition, "Kubernetes at %s does not allow this account, in namespace %s, to %s",
			d.cfg.Cluster.Host, d.cfg.Namespace, strings.Join(slices.Compact(missing), ", ")).
			WithHint("docs/kubernetes.md lists the rights of the server's account")
	}
	return d.tryPod(ctx)
}

// tryPod has the API server check a sandbox's pod without making it: the namespace, its
// level of Pod Security, and the runtime class.
func (d *Driver) tryPod(ctx context.Context) error {
	s := execution.Spec{ID: "check", Network: execution.NetworkNone, CPUMillis: 100, MemoryBytes: 64 << 20}
	pod := d.pod(s, "test.invalid/check", agent.Guest{})
	pod.Spec.InitContainers[0].Image = "test.invalid/agent"
	_, err := d.api.pods.Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	var status *apierrors.StatusError
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsNotFound(err):
		return errs.New(errs.FailedPrecondition, "Kubernetes at %s has no namespace %s: %w", d.cfg.Cluster.Host, d.cfg.Namespace, err).
			WithHint("make it: docs/kubernetes.md says how")
	case errors.As(err, &status) && apierrors.IsForbidden(err):
		return errs.New(errs.FailedPrecondition, "Kubernetes at %s refuses pods of sandboxes in namespace %s with runtime class %q: %w",
			d.cfg.Cluster.Host, d.cfg.Namespace, d.cfg.RuntimeClass, err).
			WithHint("docs/kubernetes.md says how the runtime class and the namespace must be made")
	}
	return apiError(err, "%s", fmt.Sprintf("try a pod in namespace %s", d.cfg.Namespace))
}
