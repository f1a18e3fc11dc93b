// Package kubelet is a fake node of a devcluster for exec, attach, logs and port-forward: a Node object, and an HTTPS
// server on loopback that speaks the kubelet's protocols with the kubelet's own streaming library.
//
// A container is a process of this machine: exec starts another one next to it, and a port of the pod is a port of
// 127.0.0.1. Nothing is isolated, and nothing is scheduled: Kubelet.Run creates pods. A pod's processes end at the
// latest with Close.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

const (
	streamIdleTimeout     = 4 * time.Hour // as in the kubelet
	streamCreationTimeout = remotecommand.DefaultStreamCreationTimeout
	readHeaderTimeout     = 10 * time.Second
)

// Kubelet is a node of a cluster. It is safe for concurrent use.
type Kubelet struct {
	node   string
	client corev1client.CoreV1Interface
	server *http.Server
	conns  *listenerWithContexts
	live   context.Context //nolint:containedctx // ends when Close is called, and all processes with it
	end    context.CancelFunc

	mu   sync.Mutex
	pods map[podKey]*container
}

type podKey struct{ namespace, name string }

// Start adds a node to a cluster. ctx only limits the start; the node runs until Close is called.
func Start(ctx context.Context, cluster *devcluster.Cluster, node string) (*Kubelet, error) {
	client, err := corev1client.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("starting node %q: %w", node, err)
	}
	config, err := cluster.KubeletTLS()
	if err != nil {
		return nil, fmt.Errorf("starting node %q: %w", node, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting node %q: %w", node, err)
	}
	k := &Kubelet{node: node, client: client, pods: map[podKey]*container{}}
	k.live, k.end = context.WithCancel(context.WithoutCancel(ctx))
	k.server = &http.Server{
		Handler:           k.handler(),
		TLSConfig:         config,
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // tests disconnect clients on purpose
		BaseContext:       func(net.Listener) context.Context { return k.live },
		ConnContext:       contextOf,
		Protocols:         new(http.Protocols),
	}
	k.server.Protocols.SetHTTP1(true) // streams begin with an upgrade
	k.conns = &listenerWithContexts{Listener: listener, parent: k.live, open: map[*connection]struct{}{}}
	go func() { _ = k.server.ServeTLS(k.conns, "", "") }()
	if err := k.register(ctx, listener.Addr().(*net.TCPAddr).Port); err != nil {
		return nil, errors.Join(fmt.Errorf("starting node %q: %w", node, err), k.Close())
	}
	return k, nil
}

// register creates the Node object, from which the API server takes the address.
func (k *Kubelet) register(ctx context.Context, port int) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.node, Labels: map[string]string{corev1.LabelHostname: k.node}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: devcluster.KubeletHostname}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{
				KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}, //nolint:gosec // a port
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandIn"}},
		},
	}
	if _, err := k.client.Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the Node: %w", err)
	}
	return nil
}

// Close ends all connections and all processes. Node and pods stay in the cluster.
func (k *Kubelet) Close() error {
	k.end()
	err := k.server.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, pod := range k.pods {
		<-pod.ended
	}
	return err
}

// Drop resets all connections, as a node does that loses power. New ones are accepted.
func (k *Kubelet) Drop() { k.conns.drop() }

// Connections returns the number of open connections from the API server.
func (k *Kubelet) Connections() int { return k.conns.count() }

// handler serves the paths that an API server calls.
func (k *Kubelet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.serveExec)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", k.serveAttach)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.servePortForward)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	return mux
}

// container returns the container of a request, or responds with 404 and returns nil.
func (k *Kubelet) container(w http.ResponseWriter, req *http.Request) *container {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := k.pods[podKey{req.PathValue("namespace"), req.PathValue("pod")}]
	name := req.PathValue("container")
	if found == nil || name != "" && name != ContainerName {
		http.Error(w, "no such container", http.StatusNotFound)
		return nil
	}
	return found
}

func (k *Kubelet) serveExec(w http.ResponseWriter, req *http.Request) {
	container := k.container(w, req)
	if container == nil {
		return
	}
	options, err := remotecommand.NewOptions(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, req, container, "", "", ContainerName, req.URL.Query()["command"], options,
		streamIdleTimeout, streamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (k *Kubelet) serveAttach(w http.ResponseWriter, req *http.Request) {
	container := k.container(w, req)
	if container == nil {
		return
	}
	options, err := remotecommand.NewOptions(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, req, container, "", "", ContainerName, options,
		streamIdleTimeout, streamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (k *Kubelet) servePortForward(w http.ResponseWriter, req *http.Request) {
	container := k.container(w, req)
	if container == nil {
		return
	}
	options, err := portforward.NewV4Options(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, req, container, "", "", options,
		streamIdleTimeout, streamCreationTimeout, portforward.SupportedProtocols)
}
