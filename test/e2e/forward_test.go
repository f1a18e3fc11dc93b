//go:build unix

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// forwarder forwards connections of this machine to a port of a pod, each by its own stream connection. `kubectl
// port-forward` has one for all, and drops all of them when the pod resets one.
type forwarder struct {
	config *rest.Config
	client kubernetes.Interface
	pod    string
	port   int
}

// toService forwards to the target of a Service in the agent's namespace.
func (a *administrator) toService(t *testing.T, name string) *forwarder {
	t.Helper()
	f := a.newForwarder(t)
	service := must.Get(f.client.CoreV1().Services(devinstall.Namespace).Get(interrupted, name, metav1.GetOptions{}))(t)
	if len(service.Spec.Ports) != 1 || service.Spec.Ports[0].Port != 443 {
		t.Fatalf("Service %q has the ports %v", name, service.Spec.Ports)
	}
	f.port = service.Spec.Ports[0].TargetPort.IntValue()
	f.choosePod(t, service.Spec.Selector)
	return f
}

// toAgent forwards to a port of the agent's pods.
func (a *administrator) toAgent(t *testing.T, port int) *forwarder {
	t.Helper()
	f := a.newForwarder(t)
	f.port = port
	f.choosePod(t, map[string]string{"deployment.pinniped.dev": "concierge"})
	return f
}

func (a *administrator) newForwarder(t *testing.T) *forwarder {
	t.Helper()
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(a.kubeconfig)}
	config := must.Get(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig())(t)
	client := must.Get(kubernetes.NewForConfig(config))(t)
	return &forwarder{config: config, client: client}
}

// choosePod selects a running pod.
func (f *forwarder) choosePod(t *testing.T, selector map[string]string) {
	t.Helper()
	pods := must.Get(f.client.CoreV1().Pods(devinstall.Namespace).List(interrupted, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(selector).String(), FieldSelector: "status.phase=Running",
	}))(t)
	if len(pods.Items) == 0 {
		t.Fatalf("no pod with the labels %v runs", selector)
	}
	f.pod = pods.Items[0].Name
}

// listen accepts connections at an address of this machine until the end of the test, and returns the port.
func (f *forwarder) listen(t *testing.T, a *administrator, address string) (string, error) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	live, end := context.WithCancel(context.WithoutCancel(interrupted))
	t.Cleanup(func() {
		end()
		_ = listener.Close() // it was only a listener
	})
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close() //nolint:errcheck // the connection has ended anyway
				defer context.AfterFunc(live, func() { _ = connection.Close() })()
				_ = f.join(connection) // the client notices that its connection ends
			}()
		}
	}()
	a.Say(fmt.Sprintf("%s leads to port %d of pod %s.", listener.Addr(), f.port, f.pod))
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// join connects a client with the pod's port.
func (f *forwarder) join(connection net.Conn) error {
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return err
	}
	url := f.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(devinstall.Namespace).Name(f.pod).
		SubResource("portforward").URL()
	streams, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url).
		Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return err
	}
	defer streams.Close() //nolint:errcheck // the connection has ended anyway
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(f.port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	problems, err := streams.CreateStream(headers)
	if err != nil {
		return err
	}
	if err := problems.Close(); err != nil { // this side sends no errors
		return err
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := streams.CreateStream(headers)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(data, connection)
		_ = data.Close() // the client has sent everything
	}()
	_, err = io.Copy(connection, data)
	return err
}
