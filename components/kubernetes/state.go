package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// exitAgentFailed is the exit code of an agent that cannot work.
const exitAgentFailed = 125

// Get returns the state of a sandbox.
func (d *Driver) Get(ctx context.Context, id string) (execution.Instance, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return execution.Instance{}, err
	}
	pod, err := d.api.pods.Get(ctx, d.podName(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod, err = nil, nil
	}
	if err != nil {
		return execution.Instance{}, apiError(err, "sandbox %s", id)
	}
	return d.inspect(id, pod)
}

// started returns when the container of a pod started; zero: it does not run.
func started(p *v1.Pod) (at time.Time) {
	if s := status(p); s != nil && s.State.Running != nil {
		at = s.State.Running.StartedAt.Time
	}
	return at
}

// inspect returns the state of a sandbox whose pod is p; nil: it has none.
func (d *Driver) inspect(id string, p *v1.Pod) (execution.Instance, error) {
	in := execution.Instance{ID: id, Phase: execution.Creating}
	rec, err := d.record(id)
	if errs.Is(err, errs.NotFound) && p != nil {
		return in, nil
	}
	if err != nil {
		return execution.Instance{}, err
	}
	if p != nil {
		in.Address, in.StartedAt = address(rec.Spec, p), started(p)
	}
	exit, err := d.Hub.Exit(id) // a damaged record is a crash
	if err == nil {
		if p != nil && p.Status.Reason != "" { // evicted, for example: the node has ended it, whatever its program did then
			exit.Cause, exit.Message = execution.CauseCrash, p.Status.Reason+": "+p.Status.Message
		}
		in.Phase, in.Exit = execution.Exited, &exit
		return in, nil
	}
	if !errs.Is(err, errs.NotFound) {
		return in, err
	}
	switch {
	case rec.UID == "":
		return in, nil
	case p == nil:
		return d.End(in, crash("its pod was deleted"))
	case string(p.UID) != rec.UID:
		return d.End(in, crash("its pod was replaced by another"))
	}
	if e := ended(p); e != nil {
		return d.End(in, *e)
	}
	if rec.Started {
		in.Phase = execution.Running
	}
	return in, nil
}

func crash(message string) execution.Exit {
	return execution.Exit{Cause: execution.CauseCrash, Code: 255, At: time.Now(), Message: message}
}

// ended says how a pod ended whose agent said nothing; nil: it has not.
func ended(p *v1.Pod) *execution.Exit {
	if s := status(p); s != nil && s.State.Terminated != nil {
		t := s.State.Terminated
		e := execution.Exit{Cause: execution.CauseExit, Code: int(t.ExitCode), At: t.FinishedAt.Time}
		switch {
		case t.Reason == "OOMKilled":
			e.Cause, e.Code, e.Message = execution.CauseOOM, 128+int(unix.SIGKILL), "the memory limit was reached"
		case t.ExitCode == exitAgentFailed || t.ExitCode == 128+int32(unix.SIGKILL) || t.ExitCode < 0 || t.ExitCode > 255:
			e.Cause, e.Message = execution.CauseCrash, fmt.Sprintf("the container ended with %d: %s %s", t.ExitCode, t.Reason, t.Message)
		}
		if p.Status.Reason != "" {
			e.Cause, e.Message = execution.CauseCrash, p.Status.Reason+": "+p.Status.Message
		}
		return &e
	}
	if p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded {
		e := crash(fmt.Sprintf("the pod ended: %s %s", p.Status.Reason, p.Status.Message))
		return &e
	}
	return nil
}

func (d *Driver) selector() string {
	return labels.Set{LabelInstance: d.cfg.Instance.ID}.String()
}

// List returns all sandboxes of which any part exists.
func (d *Driver) List(ctx context.Context) ([]execution.Instance, error) {
	// Records first: a sandbox that is created meanwhile has a pod.
	ids, err := d.records()
	if err != nil {
		return nil, err
	}
	list, err := d.api.pods.List(ctx, metav1.ListOptions{LabelSelector: d.selector()})
	if err != nil {
		return nil, apiError(err, "list pods")
	}
	pods := map[string]*v1.Pod{}
	for i, p := range list.Items {
		id := p.Labels[LabelSandbox]
		if agentdriver.CheckID(id) != nil || p.Name != d.podName(id) {
			continue
		}
		if pods[id] = &list.Items[i]; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	var out []execution.Instance
	for _, id := range ids {
		in, err := d.inspect(id, pods[id])
		if pods[id] == nil && err == nil && in.Phase == execution.Exited { // it may have been created, or ended, since
			in, err = d.Get(ctx, id)
		}
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			in = execution.Instance{ID: id, Phase: execution.Unknown, Err: err}
		}
		out = append(out, in)
	}
	return out, nil
}

// follow notifies of every change of a pod until ctx ends.
func (d *Driver) follow(ctx context.Context) error {
	changed := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*v1.Pod); ok {
			d.Notify(p.Labels[LabelSandbox])
		}
	}
	source := cache.NewFilteredListWatchFromClient(d.api.core, "pods", d.cfg.Namespace, func(o *metav1.ListOptions) {
		o.LabelSelector = d.selector()
	})
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &v1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, p any) { changed(p) }, DeleteFunc: changed},
	})
	informer.RunWithContext(ctx)
	return nil
}
