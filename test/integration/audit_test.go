package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// auditEvent has the fields that the tests read of an event in the API server's audit log.
type auditEvent struct {
	Verb, UserAgent, RequestURI string
	User                        struct{ Username string }
	ImpersonatedUser            *struct {
		Username, UID string
		Groups        []string
		Extra         map[string]any
	}
	ObjectRef      struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
	Annotations    map[string]string
}

// as returns the name of the impersonated user.
func (e *auditEvent) as() string {
	if e.ImpersonatedUser == nil {
		return ""
	}
	return e.ImpersonatedUser.Username
}

// audit returns the events in the API server's audit log, except those that are partly written.
func (w *world) audit(t *testing.T) iter.Seq[*auditEvent] {
	t.Helper()
	log := must.Get(os.ReadFile(w.Cluster.AuditLog()))(t)
	return func(yield func(*auditEvent) bool) {
		for line := range bytes.Lines(log) {
			var event auditEvent
			if json.Unmarshal(line, &event) == nil && !yield(&event) {
				return
			}
		}
	}
}

const (
	accountPrefix = "system:serviceaccount:"
	agentUser     = accountPrefix + devinstall.Namespace + ":" + devinstall.AgentAccount
)

// readAudit adds the permissions that the programs used in this world, and those that RBAC denied them.
func (w *world) readAudit(done map[permission]bool, refused map[permission]bool) error {
	log, err := os.ReadFile(w.Cluster.AuditLog())
	if err != nil {
		return err
	}
	if w.ownPermissions {
		done = map[permission]bool{}
	}
	readAudit(log, []string{devinstall.Namespace, devinstall.LocalUserNamespace}, done, refused)
	return nil
}

// readAudit adds the permissions that service accounts of the namespaces used according to an audit log, and those that
// RBAC denied them. It ignores the tests' own use of the accounts' tokens, by its user agent.
func readAudit(log []byte, namespaces []string, done map[permission]bool, refused map[permission]bool) {
	var users [][]byte // skips most events of other users without decoding them
	for _, namespace := range namespaces {
		users = append(users, []byte(`"username":"`+accountPrefix+namespace+":"))
	}
	for line := range bytes.Lines(log) {
		if !slices.ContainsFunc(users, func(user []byte) bool { return bytes.Contains(line, user) }) {
			continue
		}
		// An API server that is killed leaves part of a line; the next one continues on the same line.
		start := max(0, bytes.LastIndex(line, []byte(`{"kind":"Event"`)))
		var event auditEvent
		if json.Unmarshal(line[start:], &event) != nil {
			continue
		}
		account, found := strings.CutPrefix(event.User.Username, accountPrefix)
		namespace, _, _ := strings.Cut(account, ":")
		if !found || !slices.Contains(namespaces, namespace) {
			continue
		}
		if event.ImpersonatedUser != nil {
			for _, one := range event.impersonations(account) {
				done[one] = true
			}
			continue
		}
		if !strings.HasPrefix(event.UserAgent, "pinniped-agent/") {
			continue
		}
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" {
			refused[event.permission(account)] = true
			continue
		}
		for _, one := range event.permissions(account) {
			done[one] = true
		}
	}
}

func (e *auditEvent) permission(account string) permission {
	ref := e.ObjectRef
	resource := strings.TrimSuffix(ref.Resource+"/"+ref.Subresource, "/")
	if resource == "" {
		resource, _, _ = strings.Cut(e.RequestURI, "?")
	}
	return permission{account, ref.Namespace, ref.APIGroup, resource, ref.Name, e.Verb}
}

// permissions returns the permissions that a request needed.
func (e *auditEvent) permissions(account string) []permission {
	one := e.permission(account)
	needed := []permission{one}
	also := func(verb string) {
		one.verb = verb
		needed = append(needed, one)
	}
	created := e.ResponseStatus.Code == 201
	switch {
	case one.verb == "patch" && created:
		also("create")
	case one.resource == "clusterroles" && slices.Contains([]string{"create", "update"}, one.verb):
		also("escalate") // without it, the account would need all permissions that it grants
	case one.resource == "clusterrolebindings" && slices.Contains([]string{"create", "update"}, one.verb):
		one.resource, one.name = "clusterroles", ""
		also("bind")
	case one.resource == "certificatesigningrequests/approval":
		one.resource, one.name = "signers", "kubernetes.io/kube-apiserver-client"
		also("approve")
	}
	return needed
}

// impersonations returns the permissions that an impersonation needed.
func (e *auditEvent) impersonations(account string) []permission {
	var needed []permission
	add := func(group, resource string) {
		needed = append(needed, permission{account: account, group: group, resource: resource, verb: "impersonate"})
	}
	if strings.HasPrefix(e.ImpersonatedUser.Username, accountPrefix) {
		add("", "serviceaccounts")
	} else {
		add("", "users")
	}
	if slices.ContainsFunc(e.ImpersonatedUser.Groups, func(group string) bool { return group != "system:authenticated" }) {
		add("", "groups")
	}
	for key := range e.ImpersonatedUser.Extra {
		add("authentication.k8s.io", fmt.Sprintf("userextras/%s", key))
	}
	if e.ImpersonatedUser.UID != "" {
		add("authentication.k8s.io", "uids")
	}
	return needed
}
