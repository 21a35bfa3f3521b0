package docker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"miren.dev/runtime/components/docker"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/dockertest"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/wait"
)

func TestMain(m *testing.M) { dockertest.Main(m) }

func TestDriver(t *testing.T) {
	m := dockertest.New(t, dockertest.Runsc)
	t.Run("Conforms", func(t *testing.T) {
		e := m.Env()
		executiontest.Run(t, e)
	})
	t.Run("ForeignContainersStay", func(t *testing.T) { testForeign(t, m) })
	t.Run("KilledByOthers", func(t *testing.T) { testKilled(t, m) })
	t.Run("Claims", func(t *testing.T) { testClaims(t, m) })
	t.Run("RuncIsRefused", func(t *testing.T) {
		c := m.Config
		c.Runtime, c.SharedKernel = dockertest.Runc, false
		start(t, c, "not gVisor")
	})
	t.Run("NoRuntime", func(t *testing.T) {
		c := m.Config
		c.Runtime = "other"
		start(t, c, "no runtime")
	})
}

// start expects that a driver refuses to start.
func start(t *testing.T, c docker.Config, want string) {
	t.Helper()
	d, err := docker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Start(t.Context()); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

func spec(m *dockertest.Machine, id string) execution.Spec {
	return execution.Spec{ID: id, Image: m.Image, Idle: true, Network: execution.NetworkNone, MemoryBytes: 128 << 20, PIDs: 64}
}

func ensure(t *testing.T, m *dockertest.Machine, s execution.Spec) {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Driver.Delete(context.Background(), s.ID); err != nil {
			t.Error(err)
		}
		if err := m.Driver.DeleteLogs(context.Background(), s.ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := m.Driver.Ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// testForeign: a container of somebody else is neither listed nor touched, even with the name that ours would have.
func testForeign(t *testing.T, m *dockertest.Machine) {
	ensure(t, m, spec(m, "ours"))
	list, err := m.Engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list.Items, err)
	}
	name := m.Instance.Name("") + "-taken"
	made, err := m.Engine.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: list.Items[0].ImageID, Entrypoint: []string{"/bin/guest"}}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := m.Engine.Client.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Errorf("the foreign container is gone: %v", err)
		}
	})
	if _, err := m.Driver.Ensure(t.Context(), spec(m, "taken")); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("Ensure with a name that is taken: %v", err)
	}
	if err := m.Driver.Delete(t.Context(), "taken"); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("Delete: %v", err)
	}
	all, err := m.Driver.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "ours" {
		t.Errorf("List = %+v, %v", all, err)
	}
}

// testKilled: the end of a container that no agent reported is a crash, and the watcher learns of it.
func testKilled(t *testing.T, m *dockertest.Machine) {
	ensure(t, m, spec(m, "killed"))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	changes, err := m.Driver.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Engine.Client.ContainerKill(ctx, m.Instance.Name("")+"-killed", client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	for id := range changes {
		in, err := m.Driver.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if in.Phase != execution.Exited {
			continue
		}
		if in.Exit.Cause != execution.CauseCrash || in.Exit.Code != 137 || time.Since(in.Exit.At).Abs() > wait.Limit {
			t.Errorf("exit %+v", in.Exit)
		}
		return
	}
	t.Error("the end was not reported")
}

// testClaims: what a claim cannot bring is refused before the claim is made.
func testClaims(t *testing.T, m *dockertest.Machine) {
	ensure(t, m, spec(m, "claimed"))
	i := execution.Identity{Claim: "c", Mounts: []execution.Mount{{Source: t.TempDir(), Target: "/data"}}}
	if err := m.Driver.Configure(t.Context(), "claimed", i); !errs.Is(err, errs.Unimplemented) {
		t.Errorf("a claim with volumes: %v", err)
	}
	i.Claim, i.Mounts = "other", nil
	if err := m.Driver.Configure(t.Context(), "claimed", i); err != nil {
		t.Errorf("a claim after a refused one: %v", err)
	}
}
