//go:build unix

package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/pinniped-toolkit/pinniped/internal/scenario"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// Names of the objects that the scenario creates.
const (
	secret        = "pinniped-e2e-tls"
	authenticator = "pinniped-e2e"
	group         = "pinniped-e2e"
	userFile      = "pinny.yaml"
)

// Names of the Services that the agent creates.
const (
	balancerService  = "pinniped-concierge-impersonation-proxy-load-balancer"
	clusterIPService = "pinniped-concierge-impersonation-proxy-cluster-ip"
)

// runScenario runs the scenario on a cluster with the agent, and restores the configuration.
func (a *administrator) runScenario(t *testing.T, there place) {
	t.Helper()
	a.afterwards(t, "kubectl delete secret --namespace pinniped-concierge --ignore-not-found "+secret)
	a.keepConfiguration(t)
	a.addUser(t, there)
	complete := true
	for _, way := range []struct {
		name string
		open func(*testing.T, *administrator, place) (endpoint string)
	}{
		{"a load balancer", byLoadBalancer},
		{"TLS passthrough", byPassthrough},
		{"an external endpoint", byExternalEndpoint},
	} {
		t.Run("by "+way.name, func(t *testing.T) {
			defer func() { complete = complete && !t.Skipped() && !t.Failed() }()
			a.Title("Get in by " + way.name)
			a.live(t, way.open(t, a, there))
		})
		if interrupted.Err() != nil {
			t.Fatal(interrupted.Err())
		}
	}
	if complete {
		a.Done("Everything was run, and all of it worked.")
	} else {
		a.Say("NOT everything was run, or not everything worked: see above.")
	}
}

// addUser creates user pinny in a local-user-authenticator that runs until the end of the test.
func (a *administrator) addUser(t *testing.T, there place) {
	t.Helper()
	a.Title("Add a user")
	a.afterwards(t, "kubectl delete webhookauthenticator --ignore-not-found "+authenticator)
	a.afterwards(t, "kubectl delete --ignore-not-found --timeout=5m --filename local-users.yaml")
	a.does(t, "kubectl kustomize "+scenario.Quote(filepath.Join(a.repository, "deploy", "local-user-authenticator"))+
		" | sed 's|image: ghcr.io/pinniped-toolkit/pinniped-agent.*|image: "+there.usersImage()+"|' > local-users.yaml")
	a.does(t, "kubectl apply --server-side --filename local-users.yaml")
	webhook := there.startUsers(t, a)
	hash := must.Get(bcrypt.GenerateFromPassword([]byte(scenario.Password), bcrypt.MinCost))(t)
	a.does(t, scenario.CreateUser(group, string(hash)))
	a.soon(t, scenario.SaveAuthenticatorCA())
	for _, command := range scenario.UseAuthenticator(authenticator, webhook) {
		a.does(t, command)
	}
}

// configure enables the proxy, with a Service and an external endpoint; "" is none.
func (a *administrator) configure(t *testing.T, service, endpoint string) {
	t.Helper()
	external := "null"
	if endpoint != "" {
		external = `"` + endpoint + `"`
	}
	a.does(t, `kubectl patch credentialissuer pinniped-concierge-config --type merge --patch \
    '{"spec": {"impersonationProxy": {"mode": "enabled", "tls": null, "externalEndpoint": `+external+`, "service": {"type": "`+
		service+`"}}}}'`)
}

// byLoadBalancer makes clients use the address that a cloud gives the agent's Service.
func byLoadBalancer(t *testing.T, a *administrator, there place) string {
	t.Helper()
	a.configure(t, "LoadBalancer", "")
	a.does(t, "kubectl wait --for=create --timeout=1m --namespace pinniped-concierge service/"+balancerService)
	if err := there.balance(t, a, balancerService); err != nil {
		t.Skipf("NOT RUN: this machine cannot stand in for a load balancer: %v", err)
	}
	_, err := a.tries("kubectl wait --timeout=3m --namespace pinniped-concierge service/" + balancerService +
		" --for='jsonpath={.status.loadBalancer.ingress}'")
	if interrupted.Err() != nil {
		t.Fatal(interrupted.Err())
	}
	if err != nil {
		t.Skip("NOT RUN: no load balancer came within 3 minutes: it seems that this cluster has none")
	}
	address := a.does(t, "kubectl get --namespace pinniped-concierge service/"+balancerService+
		" --output 'jsonpath={.status.loadBalancer.ingress[0].hostname}{.status.loadBalancer.ingress[0].ip}'")
	return net.JoinHostPort(strings.TrimSpace(address), "443")
}

// haproxyConfig passes TLS through to one backend, for clients that request localhost.
const haproxyConfig = `defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend tls
  bind fd@3
  tcp-request inspect-delay 5s
  tcp-request content accept if { req.ssl_hello_type 1 }
  use_backend proxy if { req.ssl_sni -i localhost }
backend proxy
  server agent 127.0.0.1:%s
`

// byPassthrough makes clients use HAProxy, which reads only the server name (SNI).
func byPassthrough(t *testing.T, a *administrator, _ place) string {
	t.Helper()
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		if _, err = os.Stat("/usr/sbin/haproxy"); err != nil {
			t.Skip("NOT RUN: there is no haproxy (Debian: apt-get install haproxy)")
		}
		haproxy = "/usr/sbin/haproxy"
	}
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := listener.Addr().(*net.TCPAddr).Port
	socket := must.Get(listener.(*net.TCPListener).File())(t)
	endpoint := fmt.Sprintf("localhost:%d", port)
	a.configure(t, "ClusterIP", endpoint)
	a.does(t, "kubectl wait --for=create --timeout=1m --namespace pinniped-concierge service/"+clusterIPService)
	backend := must.Get(a.toService(t, clusterIPService).listen(t, a, "127.0.0.1:0"))(t)

	config := filepath.Join(a.dir, "haproxy.cfg")
	must.Do(t, os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, backend), 0o600))
	a.Command("haproxy -db -f haproxy.cfg &")
	process := exec.Command(haproxy, "-db", "-f", config)
	process.ExtraFiles = []*os.File{socket}
	log := &strings.Builder{}
	process.Stdout, process.Stderr = log, log
	must.Do(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed
		if t.Failed() {
			t.Logf("HAProxy says:\n%s", log)
		}
	})
	// HAProxy has inherited the socket, and is its only user.
	must.Do(t, errors.Join(socket.Close(), listener.Close()))
	other := &tls.Config{ServerName: "other.example.com", InsecureSkipVerify: true}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: other}
	if connection, err := dialer.DialContext(interrupted, "tcp", endpoint); err == nil {
		_ = connection.Close()
		t.Error("HAProxy lets a client through that asks for other.example.com")
	}
	return endpoint
}

// byExternalEndpoint makes clients use an address that is unknown to the cluster.
func byExternalEndpoint(t *testing.T, a *administrator, there place) string {
	t.Helper()
	port := must.Get(a.toAgent(t, there.proxyPort()).listen(t, a, "127.0.0.1:0"))(t)
	endpoint := "localhost:" + port
	a.configure(t, "None", endpoint)
	return endpoint
}

// live puts a certificate into service at an endpoint, logs in, renews the certificate, and rolls back.
func (a *administrator) live(t *testing.T, endpoint string) {
	t.Helper()
	pki := must.Get(scenario.NewPKI(a.dir, "PKI of the end-to-end test"))(t)
	certificate := must.Get(pki.Issue("serving", host(endpoint)))(t)
	a.does(t, scenario.Store(secret, "serving"))
	a.does(
		t,
		"pinniped ip-tls set --secret "+secret+" --ca-bundle "+scenario.CAFile+" --allow OldClientsBreak --timeout 10m",
	)
	must.Do(t, pki.Presents(interrupted, endpoint, certificate))
	a.Checked("https://%s presents the certificate of the PKI", endpoint)

	a.does(t, scenario.MakeKubeconfig(authenticator, userFile))
	const list = "kubectl get namespaces --output name --kubeconfig " + userFile
	a.fails(t, list, `User "pinny" cannot list resource "namespaces"`)
	a.afterwards(t, "kubectl delete clusterrolebinding --ignore-not-found "+group)
	a.does(t, "kubectl create clusterrolebinding "+group+" --clusterrole=view --group="+group)
	a.soon(t, list)
	a.isPinny(t, endpoint)
	a.renew(t, pki, endpoint, list)

	a.does(t, "pinniped ip-tls unset --allow OldClientsBreak --timeout 10m")
	a.fails(t, list, "certificate signed by unknown authority")
	a.does(t, "pinniped kubeconfig rotate "+userFile)
	a.isPinny(t, endpoint)
	a.Checked("with the agent's own certificate pinny gets in, too, after kubeconfig rotate")
}

// isPinny checks that the user of the kubeconfig is pinny.
func (a *administrator) isPinny(t *testing.T, endpoint string) {
	t.Helper()
	who := a.does(t, "pinniped whoami --kubeconfig "+userFile)
	address := "https://" + strings.TrimSuffix(endpoint, ":443")
	for _, want := range []string{address, "Username: pinny\n", "Groups: " + group + ", system:authenticated"} {
		if !strings.Contains(who, want) {
			t.Errorf("whoami does not say %q", want)
		}
	}
}

// renew replaces the certificate while pinny sends requests, each on a new connection.
func (a *administrator) renew(t *testing.T, pki *scenario.PKI, endpoint, question string) {
	t.Helper()
	renewed := must.Get(pki.Issue("renewed", host(endpoint)))(t)
	const answered, dropped = "ANSWERED", "DROPPED"
	asking, err := a.background(
		t,
		"sh -c 'while :; do "+question+" && echo "+answered+" || echo "+dropped+"; done'",
		answered,
	)
	if err != nil {
		t.Fatal(errors.Join(err, interrupted.Err()))
	}
	a.does(t, scenario.Store(secret, "renewed"))
	// A kubelet or an API server may propagate a Secret late.
	must.Get(pki.WaitPresented(interrupted, endpoint, renewed, 3*time.Minute))(t)
	before := strings.Count(asking.Text(), answered)
	for strings.Count(asking.Text(), answered) < before+3 {
		if interrupted.Err() != nil || !asking.Running() {
			t.Fatalf("pinny asks no more: %v", interrupted.Err())
		}
		time.Sleep(50 * time.Millisecond)
	}
	asking.Stop()
	if text := asking.Text(); strings.Contains(text, dropped) {
		t.Errorf("a request was dropped while the certificate was renewed:\n%s", text)
	} else {
		a.Checked("the certificate was renewed, and all %d requests meanwhile were answered", strings.Count(text, answered))
	}
}

func host(endpoint string) string {
	host, _, _ := net.SplitHostPort(endpoint)
	return host
}
