package kubernetes

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

const (
	containerName = "sandbox"
	volumeName    = "runtime"
	// logBytes is how much of the log the agent keeps in the pod, in memory, until this machine has it.
	logBytes = 8 << 20
	// cpuShare is how many sandboxes may share a CPU that each may use alone.
	cpuShare = 10
	// agentBytes is more than the agent's program takes.
	agentBytes = 64 << 20
)

func (d *Driver) podName(id string) string { return "rt-" + d.cfg.Instance.ID + "-" + id }

func (d *Driver) labels(id string) map[string]string {
	return map[string]string{LabelInstance: d.cfg.Instance.ID, LabelSandbox: id, "app.kubernetes.io/managed-by": "miren-runtime"}
}

// checkSpec refuses what a pod cannot have. The bandwidth, open files, and the size and
// number of files, which every sandbox of a server has a limit for, are not limited.
func checkSpec(s execution.Spec) error {
	if err := agentdriver.CheckSpec(s); err != nil {
		return err
	}
	unsupported := func(what, hint string) error {
		return errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver has no %s", s.ID, what).WithHint("%s", hint)
	}
	switch {
	case s.Restore != "":
		return errNoSnapshots
	case len(s.Mounts) > 0:
		return unsupported("disks and volumes", "run sandboxes with disks on a node with the driver runsc")
	case hostname(s) != strings.ToLower(hostname(s)) || strings.HasPrefix(hostname(s), "-") || strings.HasSuffix(hostname(s), "-"):
		return errs.New(errs.InvalidArgument, "sandbox %s: host name %q: pods have lower-case letters, digits, and - within", s.ID, hostname(s))
	}
	return nil
}

func hostname(s execution.Spec) string { return cmp.Or(s.Hostname, s.ID) }

// pod returns the pod of a sandbox, of which nodes pull image. It has no secrets: the relay brings the
// configuration.
func (d *Driver) pod(s execution.Spec, image string, g agent.Guest) *v1.Pod {
	limits := v1.ResourceList{}
	if s.CPUMillis > 0 {
		limits[v1.ResourceCPU] = *resource.NewMilliQuantity(s.CPUMillis, resource.DecimalSI)
	}
	if s.MemoryBytes > 0 {
		limits[v1.ResourceMemory] = *resource.NewQuantity(s.MemoryBytes, resource.BinarySI)
	}
	if s.DiskBytes > 0 {
		limits[v1.ResourceEphemeralStorage] = *resource.NewQuantity(s.DiskBytes+agentBytes, resource.BinarySI)
	}
	// CPU is shared as with the other drivers; memory and disk are not.
	requests := maps.Clone(limits)
	if s.CPUMillis > 0 {
		requests[v1.ResourceCPU] = *resource.NewMilliQuantity(max(1, s.CPUMillis/cpuShare), resource.DecimalSI)
	}
	var capabilities []v1.Capability
	for _, c := range append([]string{"CAP_SYS_ADMIN"}, g.Capabilities...) {
		if c := v1.Capability(strings.TrimPrefix(c, "CAP_")); !slices.Contains(capabilities, c) {
			capabilities = append(capabilities, c)
		}
	}
	command := []string{agentproto.GuestBinary, agentproto.PodFlag}
	if s.Network == execution.NetworkNone {
		command = append(command, agentproto.PodNoNetwork)
		capabilities = append(capabilities, "NET_ADMIN")
	}
	var env []v1.EnvVar
	for _, e := range g.Env {
		name, value, _ := strings.Cut(e, "=")
		env = append(env, v1.EnvVar{Name: name, Value: value})
	}
	root, yes, no, grace := int64(0), true, false, int64(1)
	size := resource.NewQuantity(agentBytes, resource.BinarySI)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: d.podName(s.ID), Namespace: d.cfg.Namespace, Labels: d.labels(s.ID)},
		Spec: v1.PodSpec{
			RestartPolicy:                 v1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			Hostname:                      hostname(s),
			DNSPolicy:                     v1.DNSDefault, // nothing of the cluster is for sandboxes, its names neither
			TerminationGracePeriodSeconds: &grace,
			SecurityContext:               &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}},
			InitContainers: []v1.Container{{
				Name:            "agent",
				Image:           d.agent,
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         []string{"/runtime-agent", agentproto.PodInstallFlag, agentproto.PodRoot},
				VolumeMounts:    []v1.VolumeMount{{Name: volumeName, MountPath: agentproto.PodRoot}},
				Resources:       v1.ResourceRequirements{Limits: limits, Requests: requests},
				SecurityContext: &v1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}},
				},
			}},
			Containers: []v1.Container{{
				Name:            containerName,
				Image:           image,
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         command,
				Env:             env,
				WorkingDir:      "/",

				TerminationMessagePolicy: v1.TerminationMessageFallbackToLogsOnError,
				VolumeMounts:             []v1.VolumeMount{{Name: volumeName, MountPath: agentproto.PodRoot, ReadOnly: true}},
				Resources:                v1.ResourceRequirements{Limits: limits, Requests: requests},
				SecurityContext: &v1.SecurityContext{
					// The agent's, and those of programs of root (agent.Guest), which the agent starts without the rest.
					RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &s.ReadOnlyRoot,
					Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: capabilities},
				},
			}},
			Volumes: []v1.Volume{{Name: volumeName, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: size}}}},
		},
	}
	if d.cfg.PullSecret != "" {
		p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: d.cfg.PullSecret}}
	}
	if d.cfg.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &d.cfg.RuntimeClass
	}
	if s.ReadOnlyRoot { // programs need a place for temporary files
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "tmp", MountPath: "/tmp"})
	}
	return p
}
