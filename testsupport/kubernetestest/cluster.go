// Package kubernetestest starts a Kubernetes cluster with one node for tests: etcd,
// kube-apiserver, kubelet and containerd with the RuntimeClass gvisor, as
// `hack/toolchain.sh cluster` builds them. The parts of Kubernetes that
// are missing are played by the package: it binds pods to the node, as a scheduler
// does.
//
// Kubelet and containerd have a mount namespace of their own, so that what they
// write to fixed paths and to sysctls does not reach the host. Their pods are
// connected to a bridge that the package makes. Everything ends with the test.
package kubernetestest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	node "k8s.io/api/node/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// Names of what the cluster has.
const (
	Namespace    = "sandboxes"
	RuntimeClass = "gvisor"
	AgentImage   = "test.invalid/agent:1"
)

// accountName is the name of Cluster.Account, its role and their binding.
const accountName = "runtime"

// Cluster is a cluster of a test.
type Cluster struct {
	Config *rest.Config // of an administrator
	// Account has the rights that docs/kubernetes.md lists, in Namespace.
	Account *rest.Config
	Core    *corev1.CoreV1Client
	Node    *Node

	t     testing.TB
	id    string
	dir   string
	token string // of the administrator
}

// Start starts a cluster. bin is the directory of the toolchain with a fresh agent.
func Start(t testing.TB, bin string) *Cluster {
	t.Helper()
	need.Root(t)
	need.Tools(t, "kube-apiserver", "kubelet", "containerd-cri", "unshare", "nsenter")
	dir, err := os.MkdirTemp("", "k8t") // short, since the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c := &Cluster{t: t, dir: dir, id: random(4), token: random(16)}
	c.startServer()
	c.prepare()
	c.Node = startNode(t, c, bin)
	return c
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) write(name, content string) string {
	c.t.Helper()
	path := c.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// Kubeconfig returns a file by which Account reaches the cluster.
func (c *Cluster) Kubeconfig() string {
	c.t.Helper()
	return c.kubeconfig("account.kubeconfig", c.Account.BearerToken)
}

func (c *Cluster) kubeconfig(name, token string) string {
	c.t.Helper()
	return c.write(name, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
"clusters": [{"name": "test", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "test", "user": {"token": %q}}],
"contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}`, c.Config.Host, token))
}

// startServer starts etcd and kube-apiserver.
func (c *Cluster) startServer() {
	t := c.t
	t.Helper()
	etcd := etcdtest.Start(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := c.write("account.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	account := random(16)
	tokens := c.write("tokens.csv", c.token+`,admin,admin,"system:masters"`+"\n"+account+","+accountName+","+accountName+"\n")
	port := freePort(t)
	run(t, "kube-apiserver", "kube-apiserver",
		"--etcd-servers=http://"+etcd.Address, "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+c.path("certs"),
		"--token-auth-file="+tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.254.0.0/24",
		"--service-account-issuer=https://test.invalid", "--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile,
		"--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP", "--enable-priority-and-fairness=false", "--allow-privileged=false",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--profiling=false",
	)
	c.Config = &rest.Config{Host: "https://127.0.0.1:" + port, BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	c.Account = rest.CopyConfig(c.Config)
	c.Account.BearerToken = account
	if c.Core, err = corev1.NewForConfig(c.Config); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "kube-apiserver is ready", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.Core.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// prepare makes the namespace, the runtime class, and the role of Account.
func (c *Cluster) prepare() {
	t, ctx := c.t, context.Background()
	t.Helper()
	classes, err := nodev1.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "namespace", func() error {
		_, err := c.Core.Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{})
		return err
	})
	class := &node.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: RuntimeClass}, Handler: "runsc"}
	if _, err := classes.RuntimeClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	roles, err := rbacv1.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbac.Role{ObjectMeta: metav1.ObjectMeta{Name: accountName}, Rules: []rbac.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "create", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"get", "create", "update", "delete"}},
	}}
	if _, err := roles.Roles(Namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbac.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: accountName},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: accountName},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: accountName}},
	}
	if _, err := roles.RoleBindings(Namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// schedule binds pods to the node until ctx ends.
func (c *Cluster) schedule(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := c.Core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil {
			continue
		}
		for _, p := range list.Items {
			c.bind(ctx, &p)
		}
		w, err := c.Core.Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=", ResourceVersion: list.ResourceVersion})
		if err != nil {
			continue
		}
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok && e.Type == "ADDED" {
				c.bind(ctx, p)
			}
		}
	}
}

func (c *Cluster) bind(ctx context.Context, p *v1.Pod) {
	if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
		return
	}
	// A pod that was deleted meanwhile cannot be bound.
	_ = c.Core.RESTClient().Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("binding").
		VersionedParams(&metav1.CreateOptions{}, scheme.ParameterCodec).
		Body(&v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, Target: v1.ObjectReference{Kind: "Node", Name: nodeName}}).
		Do(ctx).Error()
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// process is a server of the cluster.
type process struct {
	*os.Process
	ended chan struct{}
	out   *tail
}

// run starts a server that ends with the test, and when the test dies. If the test
// fails, the last lines of the server's output are logged.
func run(t testing.TB, what string, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(name, args...)
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// The signal is sent when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
			close(ended)
		}
	}()
	if err := wait.Receive(t, "the start of "+what, started); err != nil {
		t.Fatal(err)
	}
	p := &process{Process: cmd.Process, ended: ended, out: out}
	t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s:\n%s", what, out)
		}
	})
	return p
}

// end sends a signal and waits for the end.
func (p *process) end(s syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = p.Signal(s)
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			_ = p.Kill()
			<-p.ended
		}
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const most = 8 << 10
	if w.buf = append(w.buf, b...); len(w.buf) > 2*most {
		w.buf = append(w.buf[:0], w.buf[len(w.buf)-most:]...)
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}
