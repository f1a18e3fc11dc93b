package integration

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestStreamsNeedPermission requests streams as users with fewer and fewer permissions. kubectl falls back to SPDY when
// a websocket is refused, so each protocol is also requested without kubectl.
func TestStreamsNeedPermission(t *testing.T) {
	s := startStreams(t)
	const pod = "guarded"
	s.run(t, pod, repeat)
	subresources := []string{"pods/exec", "pods/attach", "pods/portforward"}
	for _, test := range []struct {
		user            string
		verbs           []string
		websocket, spdy bool
		lacks           map[string]string // by method
	}{
		{"nothing", nil, false, false, map[string]string{"GET": "get", "POST": "create"}},
		{"get-only", []string{"get"}, false, false, map[string]string{"GET": "create", "POST": "create"}},
		// Like the API server, which requires both for a websocket.
		{"create-only", []string{"create"}, false, true, map[string]string{"GET": "get"}},
		{"both", []string{"get", "create"}, true, true, nil},
	} {
		t.Run(test.user, func(t *testing.T) {
			s.permit(t, test.user, "get", "pods")
			for _, verb := range test.verbs {
				s.permit(t, test.user, verb, subresources...)
			}
			config, kubeconfig := s.user(t, test.user)
			for _, path := range []string{
				"exec?command=true&stdout=true&container=main", "attach?stdout=true&container=main", "portforward?ports=80",
			} {
				subresource, _, _ := strings.Cut(path, "?")
				for _, ask := range []struct {
					method, upgrade string
					allowed         bool
				}{
					{"GET", websocketHeaders(subresource), test.websocket},
					{"POST", spdyHeaders(subresource), test.spdy},
				} {
					want := fmt.Sprintf(
						`pods "%s" is forbidden: User "%s" cannot %s resource "pods/%s" in API group "" in the namespace "default"`, pod,
						test.user, test.lacks[ask.method], subresource)
					testkit.Eventually(t, 5*time.Second, func() error { // permissions take effect soon
						said, err := askForStream(t, s, config, ask.method, pod+"/"+path, ask.upgrade)
						switch {
						case err != nil:
							return err
						case ask.allowed && said.code == http.StatusSwitchingProtocols:
							return nil
						case ask.allowed:
							return fmt.Errorf("%s %s is answered with %d %s", ask.method, path, said.code, said.status.Message)
						case said.code != http.StatusForbidden || said.status.Reason != metav1.StatusReasonForbidden || !strings.HasPrefix(said.status.Message, want) ||
							!strings.HasSuffix(said.status.Message, "decision made by impersonation-proxy.concierge.pinniped.dev"):
							return fmt.Errorf("%s %s is answered with %d %+v, want %q", ask.method, path, said.code, said.status, want)
						}
						return nil
					})
				}
			}
			for _, protocol := range streamProtocols {
				got := s.runWith(t, protocol.environment, nil, s.world.kubectl, "--kubeconfig="+kubeconfig, "exec", pod, "--",
					"echo", "in")
				if test.spdy { // by websocket or, as a fallback, SPDY
					if got.code != 0 || got.out != "in\n" {
						t.Errorf("kubectl exec by %s ended with %d: %s", protocol.name, got.code, got.errOut)
					}
					continue
				}
				want := fmt.Sprintf(
					`Error from server (Forbidden): pods "%s" is forbidden: User "%s" cannot create resource "pods/exec"`,
					pod,
					test.user,
				)
				if got.code != 1 || got.out != "" || !strings.HasPrefix(got.errOut, want) {
					t.Errorf("kubectl exec by %s ended with %d, out %q, err %q", protocol.name, got.code, got.out, got.errOut)
				}
			}
		})
	}
}

func websocketHeaders(subresource string) string {
	protocol := "v5.channel.k8s.io"
	if subresource == "portforward" {
		protocol = "SPDY/3.1+portforward.k8s.io"
	}
	return "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n" +
		"Sec-WebSocket-Protocol: " + protocol + "\r\n"
}

func spdyHeaders(subresource string) string {
	protocol := "v4.channel.k8s.io"
	if subresource == "portforward" {
		protocol = "portforward.k8s.io"
	}
	return "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: " + protocol + "\r\nContent-Length: 0\r\n"
}

// answer is the response to a request for a stream.
type answer struct {
	code   int
	status metav1.Status
}

// askForStream requests an upgrade from the proxy, and closes the connection.
func askForStream(t *testing.T, s *streams, config *rest.Config, method, path, upgrade string) (answer, error) {
	t.Helper()
	connection, err := s.dial(config, s.endpoint())
	if err != nil {
		return answer{}, err
	}
	defer connection.Close() //nolint:errcheck // the test needs no clean close
	response, err := requestStream(connection, method, path, upgrade)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close() //nolint:errcheck // the connection is closed
	got := answer{code: response.StatusCode}
	if got.code != http.StatusSwitchingProtocols {
		if err := json.NewDecoder(response.Body).Decode(&got.status); err != nil {
			return answer{}, fmt.Errorf("%s without a Status: %w", response.Status, err)
		}
	}
	return got, nil
}

// dial connects with the user's client certificate.
func (w *world) dial(config *rest.Config, address string) (*tls.Conn, error) {
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return nil, err
	}
	roots := trusting(config.CAData)
	plain, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	_ = plain.SetDeadline(time.Now().Add(time.Minute))
	return tls.Client(plain, &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "localhost", MinVersion: tls.VersionTLS12,
	}), nil
}

// requestStream requests an upgrade, and reads the head of the response. Nothing of the stream is lost: the server
// sends nothing before the client does.
func requestStream(connection net.Conn, method, path, upgrade string) (*http.Response, error) {
	if _, err := fmt.Fprintf(connection, "%s /api/v1/namespaces/default/pods/%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
		method, path, upgrade); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: method})
}
