package kubernetes

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

const (
	// deleteTimeout bounds work that must be finished although the caller may have given up.
	deleteTimeout = 90 * time.Second
	// createTimeout bounds the call that makes a pod.
	createTimeout = 30 * time.Second
	// deleteLook is how often a deletion under way is looked at.
	deleteLook = 100 * time.Millisecond
)

// Ensure makes a sandbox exist and run.
func (d *Driver) Ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	if err := checkSpec(s); err != nil {
		return execution.Instance{}, err
	}
	if err := d.CheckPolicy(s); err != nil {
		return execution.Instance{}, err
	}
	unlock, err := d.locks.Lock(ctx, s.ID)
	if err != nil {
		return execution.Instance{}, err
	}
	defer unlock()
	in, err := d.Get(ctx, s.ID)
	switch {
	case errs.Is(err, errs.NotFound):
	case err != nil:
		return execution.Instance{}, err
	case in.Phase == execution.Exited:
		return in, nil
	case in.Phase == execution.Running:
		d.startRelay(s.ID)
		return in, d.Hub.Attach(s.ID)
	default:
		if in, err := d.finish(ctx, s); err == nil {
			return in, nil
		}
		d.logger.Info("removing an interrupted set-up", "sandbox", s.ID)
		if err := d.teardown(ctx, s.ID); err != nil {
			return execution.Instance{}, err
		}
	}
	return d.create(ctx, s)
}

func (d *Driver) create(ctx context.Context, s execution.Spec) (in execution.Instance, err error) {
	image, err := d.image(ctx, s)
	if err != nil {
		return execution.Instance{}, errs.Wrap(err, "set up sandbox %s", s.ID)
	}
	defer func() {
		if err == nil {
			return
		}
		if down := d.teardown(ctx, s.ID); down != nil {
			// The sandbox stays listed, and the next Ensure or Delete continues.
			d.logger.Error("cannot remove the sandbox", "sandbox", s.ID, "error", down)
			err = errors.Join(err, down)
		}
		err = errs.Wrap(err, "set up sandbox %s", s.ID)
	}()
	if err := d.writeRecord(s.ID, record{Spec: s}); err != nil {
		return execution.Instance{}, err
	}
	config, err := agentdriver.GuestConfig(s, image.Config)
	if err != nil {
		return execution.Instance{}, err
	}
	config.LogBytes = logBytes
	guest, err := d.Hub.Prepare(s.ID, config)
	if err != nil {
		return execution.Instance{}, err
	}
	// Not canceled half-way: whether there is a pod must be known.
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	pod, err := d.api.pods.Create(within, d.pod(s, image.Ref, guest), metav1.CreateOptions{})
	if err != nil {
		return execution.Instance{}, apiError(err, "create pod %s", d.podName(s.ID))
	}
	if err := d.writeRecord(s.ID, record{Spec: s, UID: string(pod.UID)}); err != nil {
		return execution.Instance{}, err
	}
	in, err = d.start(ctx, s, string(pod.UID))
	if errors.Is(err, errNotPulled) {
		d.cfg.Images.Forget(image.Ref)
		d.cfg.Images.Forget(d.agent)
		d.unpulled.Store(true)
		// Perhaps the registry is away, or has lost it. Then it is pushed when the sandbox is tried again.
		err = errs.New(errs.Unavailable, "%w", err).
			WithHint("do the nodes reach the registry, trust its certificate, and have a secret for it (kubernetes.pull_secret)?")
	}
	return in, err
}

// image returns the image of a sandbox. The cluster can pull it, and that of the agent.
func (d *Driver) image(ctx context.Context, s execution.Spec) (Image, error) {
	if d.unpulled.Swap(false) {
		if _, err := d.cfg.Images.Agent(ctx); err != nil {
			d.unpulled.Store(true)
			return Image{}, errs.Wrap(err, "image of the agent")
		}
	}
	return d.cfg.Images.Image(ctx, s.Image)
}

// errNotPulled is the cause when nodes cannot pull an image.
var errNotPulled = errors.New("the cluster cannot pull the image")

// finish completes a set-up that a server began before it ended.
func (d *Driver) finish(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	rec, err := d.record(s.ID)
	if err != nil || rec.UID == "" {
		return execution.Instance{}, errors.Join(errInterrupted, err)
	}
	if err := d.Hub.Attach(s.ID); err != nil {
		return execution.Instance{}, err
	}
	return d.start(ctx, s, rec.UID)
}

var errInterrupted = errors.New("its pod was not made")

// start waits for the pod, connects its agent and starts the main process.
func (d *Driver) start(ctx context.Context, s execution.Spec, uid string) (execution.Instance, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartTimeout)
	defer cancel()
	waits := "" // for what the pod waits
	look := func(ctx context.Context, id string) (execution.Instance, error) {
		pod, err := d.api.pods.Get(ctx, d.podName(id), metav1.GetOptions{})
		if err != nil {
			return execution.Instance{}, apiError(err, "pod %s", d.podName(id))
		}
		waits, err = progress(pod)
		return execution.Instance{ID: id, Phase: execution.Creating, Address: address(s, pod), StartedAt: started(pod)}, err
	}
	in, err := d.Await(ctx, s.ID, look, func(execution.Instance) bool { return waits == "" })
	if err == nil {
		d.startRelay(s.ID)
		waits = "its agent has not connected"
		// The container may end meanwhile, which says why.
		in, err = d.Await(ctx, s.ID, look, func(execution.Instance) bool { return d.Hub.Ready(s.ID) != nil })
	}
	if err != nil {
		if ctx.Err() != nil && parent.Err() == nil {
			return in, errs.New(errs.Unavailable, "pod %s does not start within %s: %s", d.podName(s.ID), d.cfg.StartTimeout, waits)
		}
		return in, err
	}
	conn, err := d.Hub.Conn(ctx, s.ID)
	if err != nil {
		return in, err
	}
	if !s.Idle {
		// A program that cannot be started ends the sandbox, which is no failure to make it.
		if err := conn.StartMain(ctx); err != nil && errs.Detail(err, "exit_code") == "" && conn.Main().Exit == nil {
			return in, err
		}
	}
	if err := d.writeRecord(s.ID, record{Spec: s, UID: uid, Started: true}); err != nil {
		return in, err
	}
	in.Phase = execution.Running
	if status := conn.Main(); status.Exit != nil {
		in.Phase, in.Exit = execution.Exited, status.Exit
	}
	d.Notify(s.ID)
	return in, nil
}

// progress returns for what a pod that is to start waits; "" if its container runs or
// has ended. An error is for one that will not start.
func progress(p *v1.Pod) (string, error) {
	if p.DeletionTimestamp != nil {
		return "", errs.New(errs.FailedPrecondition, "pod %s is being deleted", p.Name)
	}
	waits := "the pod is " + string(p.Status.Phase)
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			waits = "it cannot be scheduled: " + c.Message
		}
	}
	statuses := append(append([]v1.ContainerStatus{}, p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...)
	for i, s := range statuses {
		if w := s.State.Waiting; w != nil && w.Reason != "" {
			text := s.Name + ": " + w.Reason + ": " + w.Message
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName":
				return waits, errs.New(errs.FailedPrecondition, "%w %s: %s", errNotPulled, s.Image, text)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return waits, errs.New(errs.FailedPrecondition, "pod %s: %s", p.Name, text)
			case "ContainerCreating", "PodInitializing":
			default:
				waits = text
			}
		}
		if t := s.State.Terminated; t != nil && i < len(p.Status.InitContainerStatuses) && t.ExitCode != 0 {
			return waits, errs.New(errs.FailedPrecondition, "pod %s: the agent was not installed: exit code %d, %s", p.Name, t.ExitCode, t.Reason)
		}
	}
	if s := status(p); s != nil && (s.State.Running != nil || s.State.Terminated != nil) {
		if t := s.State.Terminated; t != nil {
			return waits, errs.New(errs.FailedPrecondition, "pod %s: the agent ended with exit code %d: %s %s", p.Name, t.ExitCode, t.Reason, t.Message).
				WithHint("kubectl logs shows what it says; the runtime class must be gVisor's with in-sandbox-cgroup=v2")
		}
		return "", nil
	}
	if p.Status.Phase == v1.PodFailed {
		return waits, errs.New(errs.FailedPrecondition, "pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message)
	}
	return waits, nil
}

// status returns the status of the sandbox's container.
func status(p *v1.Pod) *v1.ContainerStatus {
	for i, s := range p.Status.ContainerStatuses {
		if s.Name == containerName {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

func address(s execution.Spec, p *v1.Pod) string {
	if s.Network == execution.NetworkNone {
		return ""
	}
	return p.Status.PodIP
}

// teardown removes everything of a sandbox but its logs, also when the caller has
// given up.
func (d *Driver) teardown(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	d.stopRelay(id)
	if err := d.deletePod(ctx, id); err != nil {
		return err
	}
	if err := d.Hub.Remove(id); err != nil {
		return err
	}
	return d.deleteRecord(id)
}

// deletePod deletes the pod of a sandbox and waits until it is gone. A pod of that
// name with other labels is not the driver's.
func (d *Driver) deletePod(ctx context.Context, id string) error {
	name := d.podName(id)
	for {
		p, err := d.api.pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return apiError(err, "delete pod %s", name)
		}
		if p.Labels[LabelInstance] != d.cfg.Instance.ID || p.Labels[LabelSandbox] != id {
			return errs.New(errs.FailedPrecondition, "pod %s has not the labels of sandbox %s: it is not deleted", name, id)
		}
		if p.DeletionTimestamp == nil {
			grace := int64(0)
			if p.Spec.NodeName != "" { // the API object stays until the node has ended the containers
				grace = 1
			}
			err := d.api.pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &p.UID}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return apiError(err, "delete pod %s", name)
			}
		}
		select {
		case <-ctx.Done():
			return errs.New(errs.Unavailable, "pod %s is not deleted yet: its node does not answer", name)
		case <-time.After(deleteLook):
		}
	}
}
