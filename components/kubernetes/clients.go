package kubernetes

import (
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"miren.dev/runtime/pkg/errs"
)

// clients are those of the three groups of the API that the driver uses. client-go's
// own ones register all groups, which makes this program 14 MB larger.
type clients struct {
	core     rest.Interface
	params   runtime.ParameterCodec
	pods     *gentype.ClientWithList[*v1.Pod, *v1.PodList]
	policies *gentype.Client[*networking.NetworkPolicy]
	reviews  *gentype.Client[*authorization.SelfSubjectAccessReview]
}

// newClients returns the clients for a namespace of a cluster.
func newClients(cluster *rest.Config, namespace string) (*clients, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, networking.AddToScheme, authorization.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, errs.New(errs.Internal, "types of Kubernetes: %w", err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme)
	open := func(path string, group schema.GroupVersion) (rest.Interface, error) {
		cfg := rest.CopyConfig(cluster)
		cfg.APIPath, cfg.GroupVersion = path, &group
		cfg.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, codecs).WithoutConversion()
		c, err := rest.RESTClientFor(cfg)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "access to Kubernetes: %w", err)
		}
		return c, nil
	}
	core, err := open("/api", v1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	network, err := open("/apis", networking.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	access, err := open("/apis", authorization.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	params := runtime.NewParameterCodec(scheme)
	return &clients{
		core: core, params: params,
		pods: gentype.NewClientWithList("pods", core, params, namespace,
			func() *v1.Pod { return &v1.Pod{} }, func() *v1.PodList { return &v1.PodList{} }),
		policies: gentype.NewClient("networkpolicies", network, params, namespace,
			func() *networking.NetworkPolicy { return &networking.NetworkPolicy{} }),
		reviews: gentype.NewClient("selfsubjectaccessreviews", access, params, "",
			func() *authorization.SelfSubjectAccessReview { return &authorization.SelfSubjectAccessReview{} }),
	}, nil
}
