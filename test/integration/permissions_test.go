package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// permission is what RBAC lets a service account do: one verb on one resource. An empty namespace stands for all
// namespaces and cluster-scoped resources, an empty name for all names.
type permission struct{ account, namespace, group, resource, name, verb string }

func (r permission) String() string {
	text := r.account + ": " + r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.name != "" {
		text += " " + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// builtIn returns the Kubernetes roles that our bindings refer to, without the permissions that only informers use.
func builtIn() map[string][]rbacv1.PolicyRule {
	create := func(group, resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"create"}}
	}
	return map[string][]rbacv1.PolicyRule{
		"ClusterRole system:auth-delegator": {
			create("authentication.k8s.io", "tokenreviews"), create("authorization.k8s.io", "subjectaccessreviews"),
		},
		"Role extension-apiserver-authentication-reader": {{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"},
			ResourceNames: []string{"extension-apiserver-authentication"},
		}},
	}
}

// shippedPermissions returns the permissions that the manifests grant to service accounts.
func shippedPermissions(manifests io.Reader) (map[permission]bool, error) {
	roles, bindings := builtIn(), []rbacv1.RoleBinding{}
	for decoder := yaml.NewYAMLOrJSONDecoder(manifests, 4096); ; {
		var object struct {
			rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
			Rules              []rbacv1.PolicyRule
		}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch object.Kind {
		case "Role", "ClusterRole":
			roles[object.Kind+" "+object.Name] = append(roles[object.Kind+" "+object.Name], object.Rules...)
		case "RoleBinding", "ClusterRoleBinding":
			bindings = append(bindings, object.RoleBinding)
		}
	}
	permissions := map[permission]bool{}
	for _, binding := range bindings {
		rules, found := roles[binding.RoleRef.Kind+" "+binding.RoleRef.Name]
		if !found {
			return nil, fmt.Errorf("%s %s is of an unknown role", binding.Kind, binding.Name)
		}
		for _, subject := range binding.Subjects {
			if subject.Kind == rbacv1.ServiceAccountKind {
				account := subject.Namespace + ":" + subject.Name
				for _, rule := range rules {
					addPermissions(permissions, permission{account: account, namespace: binding.Namespace}, rule)
				}
			}
		}
	}
	return permissions, nil
}

func addPermissions(permissions map[permission]bool, one permission, rule rbacv1.PolicyRule) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, one.group = range rule.APIGroups {
		for _, one.resource = range rule.Resources {
			for _, one.verb = range rule.Verbs {
				for _, one.name = range names {
					permissions[one] = true
				}
			}
		}
	}
}

// readShippedPermissions returns the permissions in the folders of deploy that run a program.
func readShippedPermissions(deploy string) (map[permission]bool, error) {
	var files []io.Reader
	for _, folder := range []string{"concierge", "local-user-authenticator", "clustersigner", "serviceaccounttokens"} {
		found, err := filepath.Glob(filepath.Join(deploy, folder, "rbac*.yaml"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("deploy/%s has no roles", folder)
		}
		for _, path := range found {
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			files = append(files, strings.NewReader("---\n"+string(content)+"\n"))
		}
	}
	return shippedPermissions(io.MultiReader(files...))
}

// rarePermissions maps the permissions that programs need in cases that these tests cannot cause to the tests that do.
func rarePermissions() map[permission]string {
	const first = "internal/controller/credentialissuer/first_test.go: TestTheFirstCredentialIssuer"
	return map[permission]string{
		{
			account: "pinniped-concierge:pinniped-concierge", group: "config.concierge.pinniped.dev",
			resource: "credentialissuers", verb: "create",
		}: first,
		{
			account: "pinniped-concierge:pinniped-concierge", group: "config.concierge.pinniped.dev",
			resource: "credentialissuers", name: "pinniped-concierge-config", verb: "patch",
		}: first,
		{
			account: "pinniped-concierge:pinniped-concierge", group: "certificates.k8s.io",
			resource: "certificatesigningrequests", verb: "get",
		}: "internal/signer/signer_test.go: TestARequestIsReadAgain",
		{
			account: "pinniped-concierge:pinniped-concierge-user-accounts", namespace: userAccounts,
			resource: "serviceaccounts", verb: "update",
		}: "internal/satoken/realserver_test.go: TestOnARealAPIServer", // a login an hour later
		{
			account: "pinniped-concierge:pinniped-concierge", namespace: "pinniped-concierge", resource: "configmaps",
			name: "pinniped-concierge-revisions", verb: "create",
		}: "test/integration/dualtrust_test.go: TestARenewalByAnotherCA", // created by server-side apply, which is a patch in the audit log
	}
}

// covers reports whether r grants other. An informer lists and watches by one request to an API server that streams
// lists, and by two to an older one, so watch also needs list.
func (r permission) covers(other permission) bool {
	return r.account == other.account && r.group == other.group &&
		(r.resource == other.resource || r.resource == "*") &&
		(r.verb == other.verb || r.verb == "list" && other.verb == "watch") &&
		(r.namespace == "" || r.namespace == other.namespace) && (r.name == "" || r.name == other.name)
}

// coveredBy reports whether one of the permissions grants r.
func (r permission) coveredBy(permissions map[permission]bool) bool {
	for one := range permissions {
		if one.covers(r) {
			return true
		}
	}
	return false
}

// unused returns the shipped permissions that no request needed.
func unused(shipped, done map[permission]bool) []string {
	var found []string
	for one := range shipped {
		needed := rarePermissions()[one] != ""
		for other := range done {
			needed = needed || one.covers(other)
		}
		if !needed {
			found = append(found, one.String())
		}
	}
	slices.Sort(found)
	return found
}

// missing returns the permissions that were denied and are not shipped. It ignores those that were also used:
// Kubernetes grants them to everyone, and an API server that has just started may deny them.
func missing(shipped, done, refused map[permission]bool) []string {
	var found []string
	for one := range refused {
		if !one.coveredBy(shipped) && !done[one] {
			found = append(found, one.String())
		}
	}
	slices.Sort(found)
	return found
}

// watchedPermissions has the worlds whose audit logs are read after all tests.
type watchedPermissions struct {
	mu     sync.Mutex
	worlds []*world
}

func (w *watchedPermissions) watch(one *world) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.worlds = append(w.worlds, one)
}

// check compares, after all tests, the requests of the programs in every world with the shipped permissions. It reports
// what it could not check.
func (w *watchedPermissions) check(deploy string, out io.Writer) error {
	done, refused := map[permission]bool{}, map[permission]bool{}
	for _, world := range w.worlds {
		if err := world.readAudit(done, refused); err != nil {
			return err
		}
	}
	shipped, err := readShippedPermissions(deploy)
	if err != nil {
		return err
	}
	var problems []string
	for _, one := range missing(shipped, done, refused) {
		problems = append(problems, "refused, and not shipped: "+one)
	}
	if reason := w.incomplete(); reason != "" {
		_, _ = fmt.Fprintf(out, "permissions: whether all are needed was NOT checked, because %s\n", reason)
	} else {
		for _, one := range unused(shipped, done) {
			problems = append(problems, "not needed by any request of any test: "+one)
		}
		_, _ = fmt.Fprintf(out, "permissions: %d compared with the requests of all tests\n", len(shipped))
	}
	if len(problems) > 0 {
		return fmt.Errorf("permissions of the shipped manifests (deploy/*/rbac*.yaml):\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

// incomplete returns why not all needed permissions were observed, or "".
func (w *watchedPermissions) incomplete() string {
	for _, name := range []string{"test.run", "test.skip"} {
		if value := flag.Lookup(name).Value.String(); value != "" {
			return fmt.Sprintf("-%s %q leaves tests out", strings.TrimPrefix(name, "test."), value)
		}
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return "no test ran"
	}
	for _, world := range w.worlds {
		if world.signs {
			return ""
		}
	}
	return "there is no kube-controller-manager, and deploy/clustersigner was not tested"
}

// TestRarePermissions checks that the tests in rarePermissions exist, and that the permissions are shipped.
func TestRarePermissions(t *testing.T) {
	t.Parallel()
	shipped := must.Get(readShippedPermissions(filepath.Join("..", "..", "deploy")))(t)
	for one, shows := range rarePermissions() {
		file, test, _ := strings.Cut(shows, ": ")
		content, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil || !strings.Contains(string(content), "\nfunc "+test+"(") {
			t.Errorf("%s: %q has no %s (%v)", one, file, test, err)
		}
		if !shipped[one] {
			t.Errorf("%s is not shipped", one)
		}
	}
}

func TestComparePermissions(t *testing.T) {
	t.Parallel()
	shipped, err := shippedPermissions(strings.NewReader(`kind: Role
metadata: {name: agent, namespace: ours}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [list, watch, delete]}
- {apiGroups: [""], resources: [services], resourceNames: [a], verbs: [get]}
---
kind: RoleBinding
metadata: {name: agent, namespace: ours}
roleRef: {kind: Role, name: agent}
subjects: [{kind: ServiceAccount, name: agent, namespace: ours}, {kind: Group, name: everybody}]
---
kind: ClusterRole
metadata: {name: proxy}
rules: [{apiGroups: [authentication.k8s.io], resources: ["*"], verbs: [impersonate]}]
---
kind: ClusterRoleBinding
metadata: {name: proxy}
roleRef: {kind: ClusterRole, name: proxy}
subjects: [{kind: ServiceAccount, name: proxy, namespace: ours}]
`))
	must.Do(t, err)
	event := func(verb, resource, namespace, name string) string {
		return fmt.Sprintf(`{"kind":"Event","verb":%q,"userAgent":"pinniped-agent/v1","user":{"username":`+
			`"system:serviceaccount:ours:agent"},"objectRef":{"resource":%q,"namespace":%q,"name":%q},`+
			`"responseStatus":{"code":200}}`+"\n", verb, resource, namespace, name)
	}
	refused := func(event string) string {
		return strings.Replace(event, `"code":200}`, `"code":403},"annotations":{"authorization.k8s.io/decision":"forbid"}`,
			1)
	}
	impersonating := `{"kind":"Event","verb":"get","userAgent":"curl","user":{"username":` +
		`"system:serviceaccount:ours:proxy"},"impersonatedUser":{"username":"a","extra":{"k":["v"]}}}` + "\n"
	all := event("watch", "secrets", "ours", "") + event("delete", "secrets", "ours", "b") +
		event("get", "services", "ours", "a") + impersonating
	for _, tt := range []struct {
		name, log       string
		unused, missing []string
	}{
		{name: "finds nothing when all is used", log: all},
		{
			name: "tells namespaces and names apart",
			log: impersonating + event("watch", "secrets", "ours", "") + event("delete", "secrets", "theirs", "b") +
				event("get", "services", "ours", "b"),
			unused: []string{"ours:agent: delete secrets in ours", "ours:agent: get services a in ours"},
		},
		{
			name: "counts the agent's own requests only",
			log: impersonating + event("watch", "secrets", "ours", "") + event("delete", "secrets", "ours", "") +
				strings.Replace(event("get", "services", "ours", "a"), "pinniped-agent", "curl", 1),
			unused: []string{"ours:agent: get services a in ours"},
		},
		{
			name: "counts a patch that creates as both",
			log:  all + strings.Replace(event("patch", "pods", "ours", "a"), "200", "201", 1),
		},
		{
			name: "reads on after a line that was cut off", log: `{"kind":"Event","verb":"wa` + all + `{"kind":"Ev`,
		},
		{
			name:    "finds what was refused",
			log:     all + refused(event("list", "nodes", "", "")) + refused(event("watch", "secrets", "theirs", "")),
			missing: []string{"ours:agent: list nodes", "ours:agent: watch secrets in theirs"},
		},
		{
			name: "leaves out what is permitted and was refused for a moment",
			log: all + refused(event("delete", "secrets", "ours", "b")) + refused(event("create", "reviews", "", "")) +
				event("create", "reviews", "", ""),
		},
		{
			name: "leaves out what admission refused",
			log:  all + strings.Replace(refused(event("delete", "pods", "ours", "")), "forbid", "allow", 1),
		},
	} {
		done, denied := map[permission]bool{}, map[permission]bool{}
		readAudit([]byte(tt.log), []string{"ours"}, done, denied)
		if diff := cmp.Diff(tt.unused, unused(shipped, done)); diff != "" {
			t.Errorf("it %s: unused (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.missing, missing(shipped, done, denied)); diff != "" {
			t.Errorf("it %s: missing (-want +got):\n%s", tt.name, diff)
		}
	}
}

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
