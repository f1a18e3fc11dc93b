package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// auditEvent is what is read of an event of the API server's audit log.
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

const accountPrefix = "system:serviceaccount:"

// readAudit adds what the programs did in this world, and what RBAC refused them.
func (w *world) readAudit(done map[right]bool, refused map[right]bool) error {
	log, err := os.ReadFile(w.Cluster.AuditLog())
	if err != nil {
		return err
	}
	if w.ownPermissions {
		done = map[right]bool{}
	}
	readAudit(log, []string{devinstall.Namespace, devinstall.LocalUserNamespace}, done, refused)
	return nil
}

// readAudit adds what service accounts of the namespaces did according to an audit log, and what RBAC refused them.
// The accounts' tokens are used by tests, too, which have another user agent than our programs.
func readAudit(log []byte, namespaces []string, done map[right]bool, refused map[right]bool) {
	var users [][]byte // so that most of what others did need not be decoded
	for _, namespace := range namespaces {
		users = append(users, []byte(`"username":"`+accountPrefix+namespace+":"))
	}
	for line := range bytes.Lines(log) {
		if !slices.ContainsFunc(users, func(user []byte) bool { return bytes.Contains(line, user) }) {
			continue
		}
		// An API server that was killed leaves a piece of a line, and the next one goes on behind it.
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
			refused[event.right(account)] = true
			continue
		}
		for _, one := range event.rights(account) {
			done[one] = true
		}
	}
}

func (e *auditEvent) right(account string) right {
	ref := e.ObjectRef
	resource := strings.TrimSuffix(ref.Resource+"/"+ref.Subresource, "/")
	if resource == "" {
		resource, _, _ = strings.Cut(e.RequestURI, "?")
	}
	return right{account, ref.Namespace, ref.APIGroup, resource, ref.Name, e.Verb}
}

// rights are those that a request needed.
func (e *auditEvent) rights(account string) []right {
	one := e.right(account)
	needed := []right{one}
	also := func(verb string) {
		one.verb = verb
		needed = append(needed, one)
	}
	created := e.ResponseStatus.Code == 201
	switch {
	case one.verb == "patch" && created:
		also("create")
	case one.resource == "clusterroles" && slices.Contains([]string{"create", "update"}, one.verb):
		also("escalate") // or the account would need all that it grants
	case one.resource == "clusterrolebindings" && slices.Contains([]string{"create", "update"}, one.verb):
		one.resource, one.name = "clusterroles", ""
		also("bind")
	case one.resource == "certificatesigningrequests/approval":
		one.resource, one.name = "signers", "kubernetes.io/kube-apiserver-client"
		also("approve")
	}
	return needed
}

// impersonations are the rights that it takes to be somebody else.
func (e *auditEvent) impersonations(account string) []right {
	var needed []right
	add := func(group, resource string) {
		needed = append(needed, right{account: account, group: group, resource: resource, verb: "impersonate"})
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
