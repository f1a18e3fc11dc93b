// Package discoverytest is an API server for tests, with TLS on loopback. It implements the part of the Kubernetes API
// that the CLI uses, and records requests.
//
// It stores objects by path, and supports get, list, server-side apply, merge patches and delete. It exchanges tokens
// in TokenCredentialRequests for client certificates, which it then accepts, and serves WhoAmIRequests.
package discoverytest

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Admin is the bearer token of an administrator, who may do everything except what Forbid denies.
const Admin = "admin-token"

// User is a user who may log in with a token.
type User struct {
	Name   string
	Groups []string
}

// Request is one received request.
type Request struct {
	Method        string
	Path          string
	Query         string
	Authorization string
	ContentType   string
	Body          string
}

// Server is a test API server. Close it at the end. Its methods may be called while it serves.
type Server struct {
	URL   string
	CA    *certs.CA // of the serving certificate
	Users map[string]User
	// Login, if not nil, returns the user of a token that is not in Users. Set it before the server is used.
	Login func(token string) (User, bool)
	// Changed, if not nil, is called after a request has stored an object, before the response.
	Changed func(path string)

	http   *httptest.Server
	groups apis.Groups
	signer *certs.CA

	mu       sync.Mutex
	objects  map[string]map[string]any // by path
	absent   []string                  // path prefixes of API groups that are not served
	forbid   map[string]bool           // "verb resource"
	requests []Request
	revoked  map[string]bool // serial numbers of revoked credentials
	issued   []string        // serial numbers of all credentials
	failures []int           // status codes for the next TokenCredentialRequests
	slow     time.Duration
}

// New starts a server whose API groups end in suffix.
func New(suffix string) (*Server, error) {
	now := time.Now()
	ca, err := certs.NewCA("test serving CA", now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	serving, err := ca.IssueServing(certs.SANs{
		DNSNames: []string{"localhost", "cluster.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, now, time.Hour)
	if err != nil {
		return nil, err
	}
	return NewServing(suffix, ca, serving)
}

// NewServing starts a server that presents serving, which ca has issued.
func NewServing(suffix string, ca *certs.CA, serving *certs.KeyPair) (*Server, error) {
	signer, err := certs.NewCA("test signer CA", time.Now(), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	if err != nil {
		return nil, err
	}
	s := &Server{
		CA:      ca,
		Users:   map[string]User{},
		groups:  apis.GroupsFor(suffix),
		signer:  signer,
		objects: map[string]map[string]any{},
		forbid:  map[string]bool{},
		revoked: map[string]bool{},
	}
	clientCAs := x509.NewCertPool()
	clientCAs.AddCert(signer.Certificate())
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clientCAs,
	}
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.StartTLS()
	s.URL = s.http.URL
	return s, nil
}

// Close stops the server.
func (s *Server) Close() { s.http.Close() }

// Config returns the client configuration of an administrator.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.URL, BearerToken: Admin, TLSClientConfig: rest.TLSClientConfig{CAData: s.CA.CertPEM()}}
}

// Kubeconfig returns the kubeconfig of an administrator: context "kind", cluster "kind-cluster", user "kind-admin".
func (s *Server) Kubeconfig() *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["kind-cluster"] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: s.CA.CertPEM()}
	config.AuthInfos["kind-admin"] = &clientcmdapi.AuthInfo{Token: Admin}
	config.Contexts["kind"] = &clientcmdapi.Context{Cluster: "kind-cluster", AuthInfo: "kind-admin", Namespace: "default"}
	config.CurrentContext = "kind"
	return config
}

// CAData returns the CA bundle of the serving certificate as base64 of PEM.
func (s *Server) CAData() string { return base64.StdEncoding.EncodeToString(s.CA.CertPEM()) }

// Put creates or replaces an object: anything that encodes to a Kubernetes object in JSON.
func (s *Server) Put(object any) error {
	encoded, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return err
	}
	path, err := pathOf(fields)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = fields
	return nil
}

// Delete removes the object at path.
func (s *Server) Delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, path)
}

// Uninstall removes the product's APIs.
func (s *Server) Uninstall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, gv := range []string{
		s.groups.Config.String(), s.groups.Authentication.String(), s.groups.Login.String(), s.groups.Identity.String(),
	} {
		s.absent = append(s.absent, "/apis/"+gv+"/")
	}
	s.absent = append(s.absent, "/apis/apiregistration.k8s.io/v1/apiservices/")
}

// Forbid denies verb (get, list, patch, create) on resource (such as secrets) from now on.
func (s *Server) Forbid(verb, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forbid[verb+" "+resource] = true
}

// Revoke revokes all issued credentials: requests with them get status 401.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, serial := range s.issued {
		s.revoked[serial] = true
	}
}

// SlowDown delays every request that changes an object.
func (s *Server) SlowDown(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = by
}

// FailExchanges fails the next TokenCredentialRequests with these status codes and "Retry-After: 0".
func (s *Server) FailExchanges(codes ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = codes
}

// Requests returns the requests received so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Exchanges returns the number of TokenCredentialRequests.
func (s *Server) Exchanges() int {
	n := 0
	for _, r := range s.Requests() {
		if strings.HasSuffix(r.Path, "/tokencredentialrequests") {
			n++
		}
	}
	return n
}

func pathOf(fields map[string]any) (string, error) {
	apiVersion, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	metadata, _ := fields["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if apiVersion == "" || kind == "" || name == "" {
		return "", fmt.Errorf("an object needs apiVersion, kind and metadata.name, got %q, %q, %q", apiVersion, kind, name)
	}
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	if namespace, _ := metadata["namespace"].(string); namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + strings.ToLower(kind) + "s/" + name, nil
}

// Object returns the object at path, or nil. It must not be changed.
func (s *Server) Object(path string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	s.answer(w, r, body)
	if s.Changed != nil && r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" {
		s.Changed(r.URL.Path)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPatch || r.Method == http.MethodDelete {
		time.Sleep(s.slow)
	}
	s.requests = append(s.requests, Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
		Authorization: r.Header.Get("Authorization"), ContentType: r.Header.Get("Content-Type"), Body: string(body),
	})
	switch {
	case len(r.TLS.PeerCertificates) > 0 && s.revoked[r.TLS.PeerCertificates[0].SerialNumber.String()]:
		fail(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized", nil)
	case slices.ContainsFunc(s.absent, func(prefix string) bool { return strings.HasPrefix(r.URL.Path+"/", prefix) }):
		fail(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource", nil)
	case r.Method == http.MethodPost && r.URL.Path == "/apis/"+s.groups.Login.String()+"/tokencredentialrequests":
		s.exchange(w, body)
	case r.Method == http.MethodPost && r.URL.Path == "/apis/"+s.groups.Identity.String()+"/whoamirequests":
		s.whoAmI(w, r)
	case r.Method == http.MethodPost && r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		answer(w, http.StatusCreated, map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
			"status": map[string]any{"userInfo": map[string]any{"username": "admin"}},
		})
	case r.Method == http.MethodPost && r.URL.Path == "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		s.review(w, body)
	case r.Header.Get("Authorization") != "Bearer "+Admin:
		fail(w, http.StatusForbidden, "Forbidden",
			fmt.Sprintf("forbidden: User %q cannot get path %q", s.identify(r).Name, r.URL.Path), nil)
	default:
		s.object(w, r, body)
	}
}

func (s *Server) object(w http.ResponseWriter, r *http.Request, body []byte) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	object, exists := s.objects[r.URL.Path]
	collection := isCollection(parts)
	verb := map[string]string{http.MethodGet: "get", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	resource := parts[max(len(parts)-2, 0)]
	if collection && r.Method == http.MethodGet {
		verb, resource = "list", parts[len(parts)-1]
	}
	details := map[string]any{"name": parts[len(parts)-1], "kind": resource}
	switch {
	case s.forbid[verb+" "+resource]:
		fail(w, http.StatusForbidden, "Forbidden",
			fmt.Sprintf("%s is forbidden: User \"jane\" cannot %s resource %q", resource, verb, resource), details)
	case verb == "list":
		s.list(w, r.URL.Path+"/")
	case !exists && (verb != "patch" || !slices.Contains(parts, "namespaces")): // server-side apply creates it
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", resource, parts[len(parts)-1]), details)
	case verb == "get":
		answer(w, http.StatusOK, object)
	case verb == "patch":
		s.apply(w, r, object, body)
	case verb == "delete":
		delete(s.objects, r.URL.Path)
		answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "method not allowed", nil)
	}
}

// isCollection reports whether the parts of a path name a collection: /api/v1/x, /apis/g/v/x, or with namespaces/ns.
func isCollection(parts []string) bool {
	if len(parts) > 0 && parts[0] == "api" {
		return len(parts)%2 == 1 && len(parts) >= 3
	}
	return len(parts)%2 == 0 && len(parts) >= 4
}

func (s *Server) list(w http.ResponseWriter, prefix string) {
	items := []any{}
	parts := strings.Split(strings.Trim(prefix, "/"), "/")
	group, resource := "/"+strings.Join(parts[:len(parts)-1], "/")+"/", parts[len(parts)-1]
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		inNamespace := strings.HasPrefix(path, group+"namespaces/") && strings.Contains(path, "/"+resource+"/")
		if strings.HasPrefix(path, prefix) || inNamespace {
			items = append(items, s.objects[path])
		}
	}
	kinds := map[string]string{
		"credentialissuers":     "CredentialIssuerList",
		"webhookauthenticators": "WebhookAuthenticatorList",
		"jwtauthenticators":     "JWTAuthenticatorList",
		"secrets":               "PartialObjectMetadataList",

		"tlscertificatedelegations": "TLSCertificateDelegationList",
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": kinds[parts[len(parts)-1]], "apiVersion": strings.Join(parts[1:len(parts)-1], "/"),
		"metadata": map[string]any{}, "items": items,
	})
}

// review handles a SubjectAccessReview about one object: it is allowed if its namespace has a Role for it.
func (s *Server) review(w http.ResponseWriter, body []byte) {
	var review authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(body, &review); err != nil || review.Spec.ResourceAttributes == nil {
		fail(w, http.StatusBadRequest, "BadRequest", "not a SubjectAccessReview about a resource", nil)
		return
	}
	asked := review.Spec.ResourceAttributes
	for path, object := range s.objects {
		role, err := json.Marshal(object)
		of := strings.HasPrefix(path, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+asked.Namespace+"/roles/")
		if err == nil && of && strings.Contains(string(role), fmt.Sprintf("%q", asked.Name)) {
			review.Status.Allowed = true
		}
	}
	answer(w, http.StatusCreated, review)
}

// apply merges the applied fields into object; in a merge patch, null removes a field. It does not track field
// managers: the one called "conflict" always has a conflict unless it forces.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, object map[string]any, body []byte) {
	var applied map[string]any
	known := slices.Contains(
		[]string{"application/apply-patch+yaml", "application/merge-patch+json"},
		r.Header.Get("Content-Type"),
	)
	if !known || json.Unmarshal(body, &applied) != nil {
		fail(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"only server-side apply and merge patches are supported", nil)
		return
	}
	if r.URL.Query().Get("fieldManager") == "conflict" && r.URL.Query().Get("force") != "true" {
		fail(w, http.StatusConflict, "Conflict", "Apply failed with 1 conflict", nil)
		return
	}
	merged := Merge(object, applied)
	parts := strings.Split(r.URL.Path, "/")
	if at := slices.Index(parts, "namespaces"); object == nil && at > 0 {
		merged = Merge(merged, map[string]any{"metadata": map[string]any{"namespace": parts[at+1]}})
	}
	if r.URL.Query().Get("dryRun") == "" {
		s.objects[r.URL.Path] = merged
	}
	answer(w, http.StatusOK, merged)
}

// Merge applies a JSON merge patch (RFC 7396) to a copy of into.
func Merge(into, patch map[string]any) map[string]any {
	merged := maps.Clone(into)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range patch {
		if value == nil {
			delete(merged, key)
		} else if nested, ok := value.(map[string]any); ok {
			old, _ := merged[key].(map[string]any)
			merged[key] = Merge(old, nested)
		} else {
			merged[key] = value
		}
	}
	return merged
}

// SetUser sets the user of a token.
func (s *Server) SetUser(token string, user User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Users[token] = user
}

// accountToken is the prefix of tokens of users' service accounts.
const accountToken = "token-of-service-account:"

// exchange handles a TokenCredentialRequest: a client certificate for a token in Users, if the authenticator exists.
func (s *Server) exchange(w http.ResponseWriter, body []byte) {
	if len(s.failures) > 0 {
		code := s.failures[0]
		s.failures = s.failures[1:]
		w.Header().Set("Retry-After", "0")
		w.Header().Set("Audit-Id", "audit-1")
		fail(w, code, "", "try again", nil)
		return
	}
	var request loginv1alpha1.TokenCredentialRequest
	if err := json.Unmarshal(body, &request); err != nil || request.APIVersion != s.groups.Login.String() {
		fail(w, http.StatusBadRequest, "BadRequest", "not a TokenCredentialRequest", nil)
		return
	}
	reference := request.Spec.Authenticator
	group := ptr.Deref(reference.APIGroup, "")
	path := fmt.Sprintf("/apis/%s/%s/%ss/%s",
		group, s.groups.Authentication.Version, strings.ToLower(reference.Kind), reference.Name)
	user, known := s.Users[request.Spec.Token]
	strategy := request.Spec.Strategy
	if !known && s.Login != nil {
		user, known = s.Login(request.Spec.Token)
	}
	request.Spec = loginv1alpha1.TokenCredentialRequestSpec{}
	if _, exists := s.objects[path]; !known || !exists || group != s.groups.Authentication.Group {
		request.Status.Message = ptr.To("authentication failed")
		answer(w, http.StatusCreated, request)
		return
	}
	if strategy == string(configv1alpha1.StrategyServiceAccountToken) {
		request.Status.Credential = &loginv1alpha1.ClusterCredential{
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(10 * time.Minute)),
			Token:               accountToken + user.Name,
			RequestHeaders:      map[string][]string{"Impersonate-User": {user.Name}, "Impersonate-Group": user.Groups},
		}
		answer(w, http.StatusCreated, request)
		return
	}
	pair, err := s.signer.IssueClient(
		certs.ClientIdentity{Username: user.Name, Groups: user.Groups},
		time.Now(),
		5*time.Minute,
	)
	if err != nil {
		fail(w, http.StatusInternalServerError, "InternalError", err.Error(), nil)
		return
	}
	parsed, _ := certs.ParseBundle(pair.CertPEM)
	s.issued = append(s.issued, parsed[0].SerialNumber.String())
	request.Status.Credential = &loginv1alpha1.ClusterCredential{
		ExpirationTimestamp:   metav1.NewTime(pair.NotAfter),
		ClientCertificateData: string(pair.CertPEM),
		ClientKeyData:         string(pair.KeyPEM),
	}
	answer(w, http.StatusCreated, request)
}

func (s *Server) whoAmI(w http.ResponseWriter, r *http.Request) {
	user := s.identify(r)
	if user.Name == "system:anonymous" && r.Header.Get("Authorization") != "" {
		fail(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized", nil)
		return
	}
	result := identityv1alpha1.WhoAmIRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: s.groups.Identity.String(), Kind: "WhoAmIRequest"},
	}
	result.Status.KubernetesUserInfo.User = identityv1alpha1.UserInfo{Username: user.Name, Groups: user.Groups}
	answer(w, http.StatusCreated, result)
}

// identify returns the user who sent the request.
func (s *Server) identify(r *http.Request) User {
	if certificates := r.TLS.PeerCertificates; len(certificates) > 0 {
		subject := certificates[0].Subject
		return User{Name: subject.CommonName, Groups: append(subject.Organization, "system:authenticated")}
	}
	if account, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+accountToken); ok {
		if r.Header.Get("Impersonate-User") != account {
			return User{Name: "system:serviceaccount:users:" + account, Groups: []string{"system:serviceaccounts"}}
		}
		return User{Name: account, Groups: append(r.Header.Values("Impersonate-Group"), "system:authenticated")}
	}
	if r.Header.Get("Authorization") == "Bearer "+Admin {
		return User{Name: "admin", Groups: []string{"system:masters", "system:authenticated"}}
	}
	return User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // the client is gone if this fails
}

func fail(w http.ResponseWriter, code int, reason, message string, details map[string]any) {
	status := map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{},
		"status": "Failure", "message": message, "reason": cmp.Or(reason, strconv.Itoa(code)), "code": code,
	}
	if details != nil {
		status["details"] = details
	}
	answer(w, code, status)
}
