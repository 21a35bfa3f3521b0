package kubernetes

import (
	"errors"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"miren.dev/runtime/pkg/errs"
)

// Access says how a cluster is reached: by a file, or without one by the service
// account of the pod that the program runs in. context is one of the file; empty: its
// current one.
func Access(kubeconfig, context string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errs.New(errs.FailedPrecondition, "access to Kubernetes: no kubeconfig is configured, and the server does not run in a pod").
				WithHint("name a file with kubernetes.kubeconfig")
		}
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "access to Kubernetes by the pod's service account: %w", err)
		}
		return config, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "access to Kubernetes by %s: %w", kubeconfig, err)
	}
	return config, nil
}
