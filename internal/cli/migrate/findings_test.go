package migrate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// seen returns a state with a Deployment that runs a program, with all pods ready.
func seen(program string, change func(*state)) *state {
	s := &state{apiNamespace: namespace, deployment: &rollout{}}
	s.deployment.Spec.Template.Spec.Containers = []container{{Image: "image:v1", Command: []string{"/" + program}}}
	s.deployment.Status.Replicas, s.deployment.Status.UpdatedReplicas, s.deployment.Status.AvailableReplicas = 1, 1, 1
	if change != nil {
		change(s)
	}
	return s
}

func entry(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, APIVersion: "apps/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields),
	}
}

func managed(entries ...metav1.ManagedFieldsEntry) found {
	return found{deployment, metav1.ObjectMeta{Name: app, ResourceVersion: "7", ManagedFields: entries}}
}

const update, apply = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply

func issuerWith(t *testing.T, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestDecide(t *testing.T) {
	t.Parallel()
	owned := func(owner metav1.OwnerReference) found {
		return found{in(namespace, core("secrets"), "ca")[0], metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", UID: "1"}, owner},
		}}
	}
	ofPinniped := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", UID: "2"}
	labelled := found{
		in("", core("namespaces"), namespace)[0],
		metav1.ObjectMeta{
			Labels: map[string]string{kappApp: "1", "kapp.k14s.io/association": "v1.2", "team": "a"},
			Annotations: map[string]string{
				"kapp.k14s.io/identity":     "v1",
				"kapp.k14s.io/change-group": "a rule, which is no claim",
			},
		},
	}
	for _, tt := range []struct {
		name  string
		state *state
		back  bool
		stage result.MigrationStage
		want  []result.MigrationReason
		blunt bool // whether a finding blocks the next step
		says  []string
	}{
		{
			name: "has nothing to take over", state: &state{}, stage: result.StageNone, says: []string{"make install"},
		},
		{
			name: "finds Pinniped in another namespace", state: &state{apiNamespace: "other"}, stage: result.StageNone,
			want: []result.MigrationReason{result.MigrationElsewhere}, blunt: true, says: []string{`namespace "other"`},
		},
		{
			name: "finds Pinniped under another name", state: &state{apiNamespace: namespace}, stage: result.StageNone,
			want: []result.MigrationReason{result.MigrationElsewhere}, blunt: true,
		},
		{
			name: "does not take any Deployment for Pinniped's", state: seen("something", nil), stage: result.StageNone,
			want: []result.MigrationReason{result.MigrationElsewhere}, blunt: true,
		},
		{
			name: "lets a Pinniped be taken over that nobody owns", stage: result.StagePinniped,
			state: seen(pinnipedProgram, nil), says: []string{"make install"},
		},
		{
			name: "takes Deployments off as owners, and leaves others", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) { s.owned = []found{owned(ofPinniped)} }),
			want:  []result.MigrationReason{result.MigrationOwnedByDeployment},
			says: []string{
				`[{"op":"test","path":"/metadata/ownerReferences/1/uid","value":"2"},` +
					`{"op":"remove","path":"/metadata/ownerReferences/1"}]`,
			},
		},
		{
			name: "leaves owners of other kinds", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) {
				s.owned = []found{owned(metav1.OwnerReference{APIVersion: "v1", Kind: "Certificate", UID: "2"})}
			}),
		},
		{
			name: "hands fields over", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) {
				s.shared = []found{managed(entry("kube-controller-manager", update, "{}"), entry("kapp", update, "{}"))}
			}),
			want: []result.MigrationReason{result.MigrationFieldsOwned}, blunt: true,
			says: []string{`"path":"/metadata/managedFields/1/manager","value":"kubectl"`, "are owned by kapp,"},
		},
		{
			name: "does not mind what kubectl has applied", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) { s.shared = []found{managed(entry(applier, apply, "{}"))} }),
		},
		{
			name: "stops where a controller would put Pinniped back", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) {
				s.shared = []found{managed(entry("argocd-controller", apply, "{}"), entry("pinniped-agent", apply, "{}"))}
			}),
			want: []result.MigrationReason{result.MigrationAppliedByOthers}, blunt: true,
			says: []string{"applied by argocd-controller,"},
		},
		{
			name: "takes kapp's claims off, and nothing else", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) { s.shared = []found{labelled} }),
			want:  []result.MigrationReason{result.MigrationManagedByKapp}, blunt: true,
			says: []string{
				"kubectl annotate namespaces/pinniped-concierge kapp.k14s.io/identity-\n",
				"kubectl label namespaces/pinniped-concierge kapp.k14s.io/app- kapp.k14s.io/association-\n",
			},
		},
		{
			name: "tells of users without the proxy, and of settings", stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) {
				s.issuer = issuerWith(t, `{"status": {"strategies": [
					{"type": "KubeClusterSigningCertificate", "status": "Success"}]}}`)
				s.config = "log: {level: trace}\ndiscovery: {url: null}\nlabels: {app: pinniped-concierge, team: a}\n" +
					"names: {apiService: other-api, credentialIssuer: pinniped-concierge-config}\n"
			}),
			want: []result.MigrationReason{result.MigrationLoginsAtAPIServer, result.MigrationSettings},
			says: []string{
				`labels: {"app":"pinniped-concierge","team":"a"}, log.level: "trace", names.apiService: other-api. `,
			},
		},
		{
			name: "removes nothing while pods are replaced", stage: result.StageRollingOut,
			state: seen(agentProgram, func(s *state) {
				s.deployment.Status.Replicas, s.pinnipeds = 2, []found{{Ref: config}}
			}),
			want: []result.MigrationReason{result.MigrationRollingOut}, blunt: true, says: []string{"rollout undo"},
		},
		{
			name: "does not believe a status from before", stage: result.StageRollingOut,
			state: seen(agentProgram, func(s *state) { s.deployment.Metadata.Generation = 2 }),
			want:  []result.MigrationReason{result.MigrationRollingOut}, blunt: true,
		},
		{
			name: "removes what is left when the agent serves", stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) {
				s.pinnipeds = []found{{Ref: config}, {Ref: in("", rbac("clusterroles"), "x")[0]}}
				s.shared = []found{{Ref: in("", core("namespaces"), namespace)[0]}}
				s.agents = []found{{Ref: deployment}}
			}),
			want: []result.MigrationReason{result.MigrationLeftOver, result.MigrationPrivileged},
			says: []string{
				"kubectl delete clusterroles.rbac.authorization.k8s.io/x\n" +
					"kubectl --namespace=pinniped-concierge delete configmaps/pinniped-concierge-config\n",
			},
		},
		{
			name: "names settings under the name that the agent's ConfigMap had before", stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) {
				s.config = "apiGroupSuffix: pinniped.dev\nlog: {level: debug}\nshutdownDelay: 10s\n" +
					"work: {logins: 4, tokenReviews: 16}\napi: {servingCertificate: {durationSeconds: 1}}\n" +
					"names: {apiService: other-api, impersonationProxyLegacySecret: x}\n"
				s.agentConfig = "log: {level: info}\nshutdownDelay: 10s\nwork: {tokenReviews: 16}\n"
				s.pinnipeds = []found{{Ref: config}}
			}),
			want: []result.MigrationReason{result.MigrationSettings, result.MigrationLeftOver},
			says: []string{
				`not in effect: log.level: "debug", names.apiService: other-api, work.logins: 4. The agent reads ConfigMap ` +
					`"pinniped-concierge-agent".`,
				"kubectl --namespace=pinniped-concierge edit configmaps/pinniped-concierge-agent)",
			},
		},
		{
			name: "is silent about settings that the agent has, too", stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) {
				s.config = "log: {level: debug}\nlabels: {app: pinniped-concierge}\ndiscovery: {url: null}\n"
				s.agentConfig, s.pinnipeds = "log: {level: debug}\n", []found{{Ref: config}}
			}),
			want: []result.MigrationReason{result.MigrationLeftOver},
		},
		{
			name: "leaves it to administrators what they edit later", stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) { s.shared = []found{managed(entry("kubectl-edit", update, "{}"))} }),
		},
		{
			name: "goes back", back: true, stage: result.StageAgent, state: seen(agentProgram, nil),
			says: []string{"install Pinniped"},
		},
		{
			name: "names what Pinniped does not know", back: true, stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) {
				s.issuer = issuerWith(t, `{"spec": {"serviceAccountTokens": {}, "impersonationProxy": {"mode": "auto",
					"bearerTokens": {}, "service": {"type": "None", "loadBalancerClass": "x"}, "tls": {"secretName": "a/b"}}}}`)
			}),
			want: []result.MigrationReason{result.MigrationSettings},
			says: []string{
				"spec.serviceAccountTokens, spec.impersonationProxy.bearerTokens, " +
					"spec.impersonationProxy.service.loadBalancerClass, spec.impersonationProxy.tls.secretName in another namespace",
			},
		},
		{
			name: "takes out of the status what Pinniped refuses", back: true, stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) {
				s.issuer = issuerWith(t, `{"status": {"strategies": [{"type": "KubeClusterSigningCertificate"},
					{"type": "ImpersonationProxy"}, {"type": "ServiceAccountToken"}]}}`)
			}),
			want: []result.MigrationReason{result.MigrationUnknownStrategy}, blunt: true,
			says: []string{`"path":"/status/strategies/2"}]' --subresource=status`},
		},
		{
			name: "does not go back while the agent waits with a renewal that locks clients out", back: true,
			stage: result.StageAgent,
			state: seen(agentProgram, func(s *state) {
				s.issuer = issuerWith(t, `{"status": {"strategies": [{"type": "ImpersonationProxy",
					"findings": [{"code": "TransitionPrepared", "severity": "Warning", "message": "until tomorrow"}]}]}}`)
			}),
			want: []result.MigrationReason{result.MigrationTransitionPrepared}, blunt: true,
			says: []string{"until tomorrow", "pinniped ip-tls history"},
		},
		{
			name: "removes what is left of the agent", back: true, stage: result.StagePinniped,
			state: seen(pinnipedProgram, func(s *state) { s.agents = []found{{Ref: deployment}} }),
			want:  []result.MigrationReason{result.MigrationLeftOver}, says: []string{"kubectl --namespace=pinniped-concierge delete "},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := decide(tt.state, tt.back, newKubectl(factory.ClusterFlags{}))
			if err != nil {
				t.Fatal(err)
			}
			var reasons []result.MigrationReason
			for _, finding := range got.Findings {
				reasons = append(reasons, finding.Reason)
			}
			if diff := cmp.Diff(tt.want, reasons); diff != "" || got.Stage != tt.stage || got.InTheWay != tt.blunt {
				t.Errorf("stage %q, in the way: %t; findings (-want +got):\n%s", got.Stage, got.InTheWay, diff)
			}
			text := string((&Options{}).text(got)) + string(script(got))
			for _, says := range tt.says {
				if !strings.Contains(text, says) {
					t.Errorf("it does not say %q:\n%s", says, text)
				}
			}
		})
	}
}

// TestFieldManagersAreMerged checks that the fields of several managers are merged, so that kubectl owns all of them.
func TestFieldManagersAreMerged(t *testing.T) {
	t.Parallel()
	status := entry("kube-controller-manager", update, `{"f:status":{}}`)
	status.Subresource = "status"
	patch, err := mergeManagers(managed(
		entry("kubectl-client-side-apply", update, `{"f:spec":{"f:replicas":{}}}`), status,
		entry("kubectl-edit", update, `{"f:spec":{"f:paused":{}}}`), entry(applier, apply, `{"f:spec":{"f:replicas":{}}}`),
	))
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"op":"test","path":"/metadata/resourceVersion","value":"7"},` +
		`{"op":"replace","path":"/metadata/managedFields","value":[` +
		`{"manager":"kube-controller-manager","operation":"Update","apiVersion":"apps/v1","fieldsType":"FieldsV1",` +
		`"fieldsV1":{"f:status":{}},"subresource":"status"},` +
		`{"manager":"kubectl","operation":"Apply","apiVersion":"apps/v1","fieldsType":"FieldsV1",` +
		`"fieldsV1":{"f:spec":{"f:paused":{},"f:replicas":{}}}}]}]`
	if diff := cmp.Diff(want, string(encoded)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCommandsAreForTheClusterThatWasAsked checks that commands have the flags of the checked cluster.
func TestCommandsAreForTheClusterThatWasAsked(t *testing.T) {
	t.Parallel()
	k := newKubectl(factory.ClusterFlags{Kubeconfig: "my config", Context: "prod"})
	const want = "kubectl '--kubeconfig=my config' --context=prod --namespace=a get pods"
	if got := k.line("a", "get", "pods"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestForeignText checks that text from Pinniped's objects cannot forge a line: a shell runs the script.
func TestForeignText(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b[2J\x1b]0;title\x07\u009b31m\u202e\rb\nevil"
	m := &result.Migration{
		Stage: result.StagePinniped, Namespace: hostile, Image: hostile, Next: hostile,
		Findings: []result.MigrationFinding{{
			Reason: result.MigrationElsewhere, Message: hostile, Objects: []string{hostile},
			Commands: []string{kubectl{}.line(hostile, "delete", hostile)},
		}},
	}
	for _, text := range []string{string((&Options{}).text(m)), string(script(m))} {
		for line := range strings.Lines(text) {
			if strings.ContainsAny(line, "\x1b\x07\r\u009b\u202e") || strings.HasPrefix(strings.TrimSpace(line), "evil") {
				t.Errorf("forged: %q", line)
			}
		}
	}
}
