package concierge_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// TestAggregatedAPIs sends requests through a real API server to the aggregated APIs.
func TestAggregatedAPIs(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	a := startAgent(t, cluster)
	endpoint, bundle := newWebhook(t)
	a.createAuthenticator(t, "webhook", endpoint, bundle)
	testkit.Eventually(t, time.Minute, func() error { return a.exchanged(t, tokenRequest("", "good-token", "webhook")) })
	user := must.Get(cluster.User("ann"))(t)
	a.waitServed(t, user) // the other API

	t.Run("gives a client certificate to somebody unknown who has a good token", a.testCredential)
	t.Run("serves many unknown clients at once over the aggregator's one connection", a.testParallel)
	t.Run("responds as the contract says", a.testResponses)
	t.Run("refuses Kubernetes' own names, and logs why without the token", a.testRefusal)
	t.Run("returns the caller's identity", a.testWhoAmI)
	t.Run("describes itself", a.testOpenAPI)
	t.Run("explains every field", a.testExplain)
	t.Run("is found by its categories", a.testCategories)
	t.Run("honours admission that does not see the token", a.testAdmission)
	t.Run("disconnects unknown clients that connect directly", a.testDirect)
	t.Run("says when it is ready", a.testReadiness)
	t.Run("renews its certificate while requests go on", a.testRenewalUnderRequests)
	t.Run("gets a new certificate without a restart", a.testRenewal)
	t.Run("ends with its context", func(t *testing.T) {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func (a *agent) createAuthenticator(t *testing.T, name, endpoint string, bundle []byte) {
	t.Helper()
	object := &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{
			Endpoint: endpoint,
			TLS:      &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: base64.StdEncoding.EncodeToString(bundle)},
		},
	}
	must.Do(t, a.admin.Create(t.Context(), object))
	testkit.Eventually(t, time.Minute, func() error {
		if err := a.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if object.Status.Phase != authenticationv1alpha1.PhaseReady || len(object.Status.Conditions) != 5 {
			return fmt.Errorf("phase is %q, conditions %v", object.Status.Phase, object.Status.Conditions)
		}
		return nil
	})
}

// login sends a TokenCredentialRequest as an anonymous client of the API server.
func (a *agent) login(t *testing.T, body string) (code int, response string, err error) {
	t.Helper()
	return send(t.Context(), rest.AnonymousClientConfig(a.cluster.AdminConfig()), http.MethodPost, loginPath, body)
}

// exchanged returns nil when the response to the request has a credential.
func (a *agent) exchanged(t *testing.T, body string) error {
	t.Helper()
	code, response, err := a.login(t, body)
	if err != nil {
		return err
	}
	if code != http.StatusCreated || !strings.Contains(response, "clientCertificateData") {
		return fmt.Errorf("status code %d: %s", code, response)
	}
	return nil
}

func (a *agent) testCredential(t *testing.T) {
	code, response, err := a.login(t, tokenRequest("", "good-token", "webhook"))
	if err != nil || code != http.StatusCreated {
		t.Fatalf("status code %d, error %v: %s", code, err, response)
	}
	if strings.Contains(response, "good-token") {
		t.Error("the token is in the response")
	}
	prefix := `{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1","metadata":{},"spec":{"authenticator":{"apiGroup":null,"kind":"","name":""}},"status":{"credential":{"expirationTimestamp":`
	if !strings.HasPrefix(response, prefix) {
		t.Errorf("want a response that begins with %s, got %s", prefix, response)
	}
	var request loginv1alpha1.TokenCredentialRequest
	must.Do(t, json.Unmarshal([]byte(response), &request))
	credential := request.Status.Credential
	pair := must.Get(tls.X509KeyPair([]byte(credential.ClientCertificateData), []byte(credential.ClientKeyData)))(t)
	leaf := pair.Leaf
	roots := x509.NewCertPool()
	roots.AddCert(a.signer.Certificate())
	must.Get(leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))(t)
	got := []any{
		leaf.Subject.CommonName, leaf.Subject.Organization, leaf.Subject.OrganizationalUnit,
		leaf.NotAfter.Sub(leaf.NotBefore), credential.ExpirationTimestamp.UTC(),
	}
	want := []any{
		"pinny",
		[]string{"a-group", "b-group"},
		[]string{"example.com/x=1", "example.com/x=2"},
		10 * time.Minute, leaf.NotAfter.UTC(),
	}
	same.Values(t, "", want, got)
}

func (a *agent) testParallel(t *testing.T) {
	anonymous := rest.AnonymousClientConfig(a.cluster.AdminConfig())
	httpClient := must.Get(rest.HTTPClientFor(anonymous))(t)
	url, body := anonymous.Host+loginPath, tokenRequest("", "good-token", "webhook")
	const clients, each = 20, 10
	problems := make(chan error, clients*each)
	began := time.Now()
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				code, response, err := sendBy(t.Context(), httpClient, http.MethodPost, url, body)
				if err != nil || code != http.StatusCreated || !strings.Contains(response, "clientKeyData") {
					problems <- fmt.Errorf("status code %d, error %w: %s", code, err, response)
				}
			}
		})
	}
	group.Wait()
	close(problems)
	for problem := range problems {
		t.Error(problem)
	}
	t.Logf("%d requests by %d clients took %s", clients*each, clients, time.Since(began))
	began = time.Now()
	for range each {
		if _, _, err := sendBy(t.Context(), httpClient, http.MethodPost, url, body); err != nil {
			t.Error(err)
		}
	}
	t.Logf("one after the other, a request takes %s", time.Since(began)/each)
}

func (a *agent) testResponses(t *testing.T) {
	anonymous := rest.AnonymousClientConfig(a.cluster.AdminConfig())
	failed := `{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1","metadata":{},"spec":{"authenticator":{"apiGroup":null,"kind":"","name":""}},"status":{"message":"authentication failed"}}`
	for _, test := range []struct {
		name, method, path, body string
		code                     int
		contains                 string
	}{
		{"a wrong token is a response, not an error", "POST", loginPath, tokenRequest("", "wrong", "webhook"), 201, failed},
		{"so is a blank one", "POST", loginPath, tokenRequest("", "  ", "webhook"), 201, failed},
		{"so is an unknown authenticator", "POST", loginPath, tokenRequest("", "good-token", "nobody"), 201, failed},
		{
			"a missing token is invalid", "POST", loginPath, tokenRequest("", "", "webhook"), 422,
			`.login.concierge.pinniped.dev \"\" is invalid: spec.token.value: Required value: token must be supplied`,
		},
		{
			"a dry run is invalid", "POST", loginPath + "?dryRun=All", tokenRequest("x", "good-token", "webhook"), 422,
			`.login.concierge.pinniped.dev \"x\" is invalid: dryRun: Unsupported value`,
		},
		{"a list is empty", "GET", loginPath, "", 200, `"metadata":{"resourceVersion":"0"},"items":[]`},
		{"a list of the other kind too", "GET", whoAmIPath, "", 200, `"metadata":{"resourceVersion":"0"},"items":[]`},
		{
			"other verbs do not exist", "DELETE", loginPath, "", 403,
			`cannot deletecollection resource \"tokencredentialrequests\"`,
		},
		{
			"dry runs of the other kind are invalid", "POST", whoAmIPath + "?dryRun=All", whoAmIRequest, 422,
			`.identity.concierge.pinniped.dev \"\" is invalid: dryRun: Unsupported value`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, response, err := send(t.Context(), anonymous, test.method, test.path, test.body)
			must.Do(t, err)
			if !strings.Contains(strings.TrimSpace(response), test.contains) || code != test.code {
				t.Errorf("want status code %d and %s\ngot %d and %s", test.code, test.contains, code, response)
			}
		})
	}
}

func (a *agent) testRefusal(t *testing.T) {
	code, response, err := a.login(t, tokenRequest("", "master-token", "webhook"))
	if err != nil || code != http.StatusCreated ||
		!strings.Contains(response, `"status":{"message":"authentication failed"}`) {
		t.Errorf("status code %d, error %v: %s", code, err, response)
	}
	log := a.log.String()
	for _, want := range []string{
		"TokenCredentialRequest Unsupported UserInfo", "auditEvent", "sourceIPs", "127.0.0.1", "reserved for Kubernetes",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("want %q in the log, got:\n%s", want, log)
		}
	}
	for _, secret := range []string{"good-token", "master-token", "pinny", "a-group"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log:\n%s", secret, log)
		}
	}
}

func (a *agent) testWhoAmI(t *testing.T) {
	jane := must.Get(a.cluster.User("jane", "readers"))(t)
	code, response, err := send(t.Context(), jane, http.MethodPost, whoAmIPath, whoAmIRequest)
	if err != nil || code != http.StatusCreated {
		t.Fatalf("status code %d, error %v: %s", code, err, response)
	}
	want := `{"kind":"WhoAmIRequest","apiVersion":"identity.concierge.pinniped.dev/v1alpha1","metadata":{},"spec":{},"status":{"kubernetesUserInfo":{"user":{"username":"jane","groups":["readers","system:authenticated"]`
	if !strings.HasPrefix(response, want) {
		t.Errorf("want %s…\ngot  %s", want, response)
	}
	account := must.Get(a.cluster.ServiceAccountConfig(t.Context(), namespace, "pinniped-concierge"))(t)
	code, response, err = send(t.Context(), account, http.MethodPost, whoAmIPath, whoAmIRequest)
	if err != nil || code != http.StatusCreated ||
		!strings.Contains(response, `"username":"system:serviceaccount:pinniped-concierge:pinniped-concierge","uid":"`) {
		t.Errorf("status code %d, error %v: %s", code, err, response)
	}
}

func (a *agent) testOpenAPI(t *testing.T) {
	for path, wants := range map[string][]string{
		"/openapi/v3/apis/login.concierge.pinniped.dev/v1alpha1": {
			"TokenCredentialRequest exchanges a token", "token is the token to verify", "kind of the object",
			`"x-kubernetes-group-version-kind":[{"group":"login.concierge.pinniped.dev","kind":"TokenCredentialRequest","version":"v1alpha1"}]`,
		},
		"/openapi/v3/apis/identity.concierge.pinniped.dev/v1alpha1": {
			"WhoAmIRequest asks the cluster who the caller is", "username is the name",
		},
		"/openapi/v2": {"TokenCredentialRequest exchanges a token"},
	} {
		testkit.Eventually(t, time.Minute, func() error { // the API server fetches the documents at its own pace
			code, response, err := send(t.Context(), a.cluster.AdminConfig(), http.MethodGet, path, "")
			if err != nil {
				return err
			}
			compact := &bytes.Buffer{}
			if err := json.Compact(compact, []byte(response)); err != nil {
				return fmt.Errorf("status code %d: %w", code, err)
			}
			for _, want := range wants {
				if !strings.Contains(compact.String(), want) {
					return fmt.Errorf("%s: want %q in %.3000s", path, want, compact)
				}
			}
			return nil
		})
	}
	const group = "/apis/login.concierge.pinniped.dev/v1alpha1"
	code, response, err := send(t.Context(), a.cluster.AdminConfig(), http.MethodGet, group, "")
	want := `"resources":[{"name":"tokencredentialrequests","singularName":"tokencredentialrequest","namespaced":false,"kind":"TokenCredentialRequest","verbs":["create","list"],"categories":["pinniped"]}]`
	if err != nil || code != http.StatusOK || !strings.Contains(response, want) {
		t.Errorf("want %s\ngot status code %d, error %v: %s", want, code, err, response)
	}
}

const policies = `
{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"tokens"},"spec":{
  "matchConstraints":{"resourceRules":[{"apiGroups":["login.concierge.pinniped.dev"],"apiVersions":["*"],"operations":["CREATE"],"resources":["*"]}]},
  "validations":[
    {"expression":"!has(object.spec.token)","message":"the token was shown"},
    {"expression":"object.metadata.?name.orValue('') != 'blocked'","message":"blocked by policy"}]}},
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"tokens"},"spec":{"policyName":"tokens","validationActions":["Deny"]}},
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"alias"},"spec":{
  "matchConstraints":{"resourceRules":[{"apiGroups":["login.concierge.pinniped.dev"],"apiVersions":["*"],"operations":["CREATE"],"resources":["*"]}]},
  "matchConditions":[{"name":"alias","expression":"!has(object.spec.token) && object.spec.authenticator.name == 'alias'"}],
  "failurePolicy":"Fail","reinvocationPolicy":"Never",
  "mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'replace', path: '/spec/authenticator/name', value: 'webhook'}]"}}]}},
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"alias"},"spec":{"policyName":"alias"}}
]}`

// testAdmission has an API server that was upgraded after the agent started: it now serves admission policies.
func (a *agent) testAdmission(t *testing.T) {
	a.older.Store(false)
	file := filepath.Join(t.TempDir(), "policies.json")
	writeFile(t, file, policies)
	must.Do(t, a.cluster.Install(t.Context(), file))
	testkit.Eventually(t, time.Minute, func() error {
		code, response, err := a.login(t, tokenRequest("blocked", "good-token", "webhook"))
		if err != nil {
			return err
		}
		if code != http.StatusUnprocessableEntity || !strings.Contains(response, "blocked by policy") ||
			strings.Contains(response, "good-token") {
			return fmt.Errorf("status code %d: %s", code, response)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error { return a.exchanged(t, tokenRequest("", "good-token", "alias")) })
}

func (a *agent) testDirect(t *testing.T) {
	var secret corev1.Secret
	must.Do(t, a.admin.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: servingCert}, &secret))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["caCertificate"])
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "pinniped-concierge-api.pinniped-concierge.svc", MinVersion: tls.VersionTLS12,
	}}
	defer transport.CloseIdleConnections()
	direct := &http.Client{Transport: transport}
	for range 3 { // on new connections
		body := tokenRequest("", "good-token", "webhook")
		code, response, err := sendBy(t.Context(), direct, http.MethodPost, "https://"+a.address+loginPath, body)
		if err != nil || code != http.StatusForbidden || response != "" {
			t.Fatalf("want an unauthenticated client refused, got %d, %v: %s", code, err, response)
		}
	}
	for what, change := range map[string]func(*tls.Config){
		"a costly curve": func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP521, tls.CurveP384} },
		"TLS 1.2":        func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
	} {
		bad := transport.Clone()
		change(bad.TLSClientConfig)
		client := &http.Client{Transport: bad}
		if _, _, err := sendBy(t.Context(), client, http.MethodGet, "https://"+a.address+"/healthz", ""); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	// A certificate with the name of the front proxy from another CA is not accepted.
	other := must.Get(certs.NewCA("other", time.Now(), time.Hour))(t)
	pair := must.Get(other.IssueClient(certs.ClientIdentity{Username: "front-proxy-client"}, time.Now(), time.Hour))(t)
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	forged := transport.Clone()
	forged.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	url, body := "https://"+a.address+whoAmIPath, strings.NewReader(whoAmIRequest)
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url, body))(t)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Remote-User", "admin")
	request.Header.Set("X-Remote-Group", "system:masters")
	response, err := (&http.Client{Transport: forged}).Do(request)
	must.Do(t, err)
	defer response.Body.Close() //nolint:errcheck // nothing is read
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("want status code 403, got %d", response.StatusCode)
	}
}

func (a *agent) testReadiness(t *testing.T) {
	// as the kubelet does
	probe := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path string) int {
		code, _, err := sendBy(t.Context(), probe, http.MethodGet, "https://"+a.address+path, "")
		must.Do(t, err)
		return code
	}
	testkit.Eventually(t, time.Minute, func() error {
		if code := get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("/readyz returned %d", code)
		}
		return nil
	})
	notReady := errors.New("the proxy does not listen")
	a.ready.Store(&notReady)
	defer a.ready.Store(nil)
	for path, want := range map[string]int{"/readyz": 500, "/livez": 200, "/healthz": 200, "/debug/pprof/": 403} {
		if got := get(path); got != want {
			t.Errorf("%s: want status code %d, got %d", path, want, got)
		}
	}
}

func (a *agent) testRenewal(t *testing.T) {
	name := types.NamespacedName{Namespace: namespace, Name: servingCert}
	var before corev1.Secret
	must.Do(t, a.admin.Get(t.Context(), name, &before))
	if before.Labels["app"] != "pinniped-concierge" {
		t.Errorf("want the label app, got %v", before.Labels)
	}
	must.Do(t, a.admin.Delete(t.Context(), before.DeepCopy()))
	var after corev1.Secret
	testkit.Eventually(t, time.Minute, func() error {
		if err := a.admin.Get(t.Context(), name, &after); err != nil {
			return err
		}
		connection, err := tls.Dial("tcp", a.address, &tls.Config{InsecureSkipVerify: true}) // compared below
		if err != nil {
			return err
		}
		defer connection.Close() //nolint:errcheck // nothing was sent
		served := pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: connection.ConnectionState().PeerCertificates[0].Raw},
		)
		if !bytes.Equal(served, after.Data["tlsCertificateChain"]) {
			return errors.New("another certificate is served than the Secret holds")
		}
		for _, service := range apiServices {
			var registered apiregistrationv1.APIService
			if err := a.admin.Get(t.Context(), types.NamespacedName{Name: service}, &registered); err != nil {
				return err
			}
			if !bytes.Equal(registered.Spec.CABundle, after.Data["caCertificate"]) {
				return fmt.Errorf("APIService %q has another CA bundle", service)
			}
		}
		return a.exchanged(t, tokenRequest("", "good-token", "webhook"))
	})
	if bytes.Equal(before.Data["tlsCertificateChain"], after.Data["tlsCertificateChain"]) {
		t.Error("the certificate is the same as before")
	}
}

// testRenewalUnderRequests puts a certificate of the same CA that is about to expire into the Secret. The agent renews
// it, and no request fails meanwhile.
func (a *agent) testRenewalUnderRequests(t *testing.T) {
	name := types.NamespacedName{Namespace: namespace, Name: servingCert}
	var secret corev1.Secret
	must.Do(t, a.admin.Get(t.Context(), name, &secret))
	ca := must.Get(certs.LoadCA(secret.Data["caCertificate"], secret.Data["caCertificatePrivateKey"]))(t)
	block, _ := pem.Decode(secret.Data["tlsCertificateChain"])
	served := must.Get(x509.ParseCertificate(block.Bytes))(t)
	old := must.Get(ca.IssueServing(certs.SANs{DNSNames: served.DNSNames}, time.Now().Add(-10*time.Hour), 11*time.Hour))(t)

	renewed := make(chan struct{})
	failures := make(chan error, 1)
	var requests int
	go func() {
		defer close(failures)
		for last := false; ; {
			if err := a.exchanged(t, tokenRequest("", "good-token", "webhook")); err != nil {
				failures <- fmt.Errorf("after %d requests: %w", requests, err)
				return
			}
			if requests++; last {
				return
			}
			select {
			case <-renewed:
				last = true // one more request, with the new certificate
			default:
			}
		}
	}()
	before := secret.DeepCopy()
	secret.Data["tlsCertificateChain"], secret.Data["tlsPrivateKey"] = old.CertPEM, old.KeyPEM
	if err := a.admin.Patch(t.Context(), &secret, client.MergeFrom(before)); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if err := a.admin.Get(t.Context(), name, &secret); err != nil {
			return err
		}
		now := secret.Data["tlsCertificateChain"]
		if bytes.Equal(now, old.CertPEM) {
			return errors.New("the certificate that ends soon is still there")
		}
		connection, err := tls.Dial("tcp", a.address, &tls.Config{InsecureSkipVerify: true}) // compared below
		if err != nil {
			return err
		}
		defer connection.Close() //nolint:errcheck // nothing was sent
		if block, _ := pem.Decode(now); !bytes.Equal(block.Bytes, connection.ConnectionState().PeerCertificates[0].Raw) {
			return errors.New("the renewed certificate is not served")
		}
		return nil
	})
	close(renewed)
	if err := <-failures; err != nil {
		t.Error(err)
	}
	t.Logf("%d requests", requests)
	if !bytes.Equal(secret.Data["caCertificate"], before.Data["caCertificate"]) {
		t.Error("the CA was replaced, too")
	}
}
