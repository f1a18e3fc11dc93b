package discoverytest

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
	group := ""
	if reference.APIGroup != nil {
		group = *reference.APIGroup
	}
	path := "/apis/" + group + "/" + s.groups.Authentication.Version + "/" + strings.ToLower(
		reference.Kind,
	) + "s/" + reference.Name
	user, known := s.Users[request.Spec.Token]
	strategy := request.Spec.Strategy
	if !known && s.Login != nil {
		user, known = s.Login(request.Spec.Token)
	}
	request.Spec = loginv1alpha1.TokenCredentialRequestSpec{}
	if _, exists := s.objects[path]; !known || !exists || group != s.groups.Authentication.Group {
		message := "authentication failed"
		request.Status.Message = &message
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
	if block, _ := pem.Decode(pair.CertPEM); block != nil {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			s.issued = append(s.issued, certificate.SerialNumber.String())
		}
	}
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
		"status": "Failure", "message": message, "reason": reason, "code": code,
	}
	if details != nil {
		status["details"] = details
	}
	if reason == "" {
		status["reason"] = strconv.Itoa(code)
	}
	answer(w, code, status)
}

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }
