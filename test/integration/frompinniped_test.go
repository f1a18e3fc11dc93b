package integration

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// migration is a cluster with a simulated Pinniped, and an administrator who reads docs/howto/from-pinniped.md.
type migration struct {
	*reader
	installer  string
	manifests  string // the manifests that install Pinniped
	steps      []documents.Block
	secrets    map[string]map[string][]byte // as Pinniped created them
	kubeconfig string                       // of a user who logged in with Pinniped
	deployment appsv1.DeploymentSpec        // as it was installed
}

const agentImage = "registry.example.com/team/pinniped-agent:v1.0.0"

// TestFromPinniped follows docs/howto/from-pinniped.md, there and back, for Pinniped installed with kubectl and with
// kapp. A user of Pinniped can log in while the agent runs.
func TestFromPinniped(t *testing.T) {
	t.Parallel() // each installer has its own world
	needsCluster(t)
	for _, installer := range []string{"kubectl", "kapp"} {
		t.Run(installer, func(t *testing.T) {
			t.Parallel()
			m := newMigration(t, installer)
			m.installPinniped(t)
			m.refuseUnprepared(t)

			m.step(t, 0)
			if printed := m.read(t, "prepare.sh"); installer == "kapp" != strings.Contains(printed, "kapp.k14s.io/app-") {
				t.Errorf("the commands for kapp are in the way of %s, or are missing:\n%s", installer, printed)
			}
			before := m.deploymentSpec(t)
			m.step(t, 1)
			if diff := cmp.Diff(before, m.deploymentSpec(t)); diff != "" {
				t.Errorf("the preparation has changed the Deployment (-before +after):\n%s", diff)
			}

			m.step(t, 2)
			m.isTheAgents(t)
			agent := m.startAgent(t)
			m.getsIn(t)
			if got := m.migrate(t, 3, "check"); !strings.Contains(got, "RollingOut") || strings.Contains(got, "kubectl delete") {
				t.Errorf("while it is rolled out, it says:\n%s", got)
			}
			m.rolledOut(t)
			printed := m.step(t, 3)
			for _, left := range []string{
				"deployments.apps/pinniped-concierge-kube-cert-agent", "serviceaccounts/pinniped-concierge-kube-cert-agent",
				"configmaps/pinniped-concierge-config", `"pod-security.kubernetes.io/enforce":"restricted"`,
				"Next: nothing: the agent serves, and Pinniped is removed.",
			} {
				if !strings.Contains(printed, left) {
					t.Errorf("it does not say %q:\n%s", left, printed)
				}
			}
			m.nothingOfKapp(t)
			m.getsIn(t)
			if err := agent.Restart(t.Context()); err != nil { // with only the permissions of the agent's manifests
				t.Fatal(err)
			}
			waitReady(t, agent)
			m.getsIn(t)

			m.step(t, 4)
			if diff := cmp.Diff(m.deployment, m.deploymentSpec(t)); diff != "" {
				t.Errorf("the Deployment is not what Pinniped's manifests make (-want +got):\n%s", diff)
			}
			m.getsIn(t) // its pods stop last
			must.Do(t, agent.Stop())
			m.keptSecrets(t)
			printed = m.step(t, 5)
			if !strings.Contains(printed, "Next: nothing: Pinniped is installed, and the agent is removed.") {
				t.Errorf("something is left of the agent:\n%s", printed)
			}
			if strings.Contains(printed, "leases.coordination.k8s.io/") {
				t.Errorf("a replica has left its Lease behind, and would be counted:\n%s", printed)
			}
			m.nothingOfTheAgent(t)
		})
	}
}

func newMigration(t *testing.T, installer string) *migration {
	t.Helper()
	w := &world{cli: shared.cli, kubectl: shared.kubectl, Installation: &devinstall.Installation{
		Cluster: testkit.Cluster(t, devcluster.Options{}), Binary: shared.Binary, Deploy: shared.Deploy, Apart: true,
	}}
	w.admin = must.Get(client.New(w.Cluster.AdminConfig(), client.Options{Scheme: shared.admin.Scheme()}))(t)
	m := &migration{reader: w.reader(t), installer: installer}
	m.environment = append(m.environment, "MANIFESTS="+filepath.Join(m.dir, "manifests"), "TIMEOUT=0")
	// `make install` builds and pushes the image, and then runs this.
	m.program(t, "make", "[ \"$*\" = 'install REGISTRY=ghcr.io/me' ] && exec "+m.install()+" "+agentImage)
	if m.steps = m.blocks(t, "docs/howto/from-pinniped.md"); len(m.steps) != 6 {
		t.Fatalf("the document has %d blocks", len(m.steps))
	}
	return m
}

func (m *migration) install() string {
	return filepath.Join(filepath.Dir(m.Deploy), "hack", "install.sh")
}

// step runs a block of the document, and returns its output. If kapp is the installer, it installs Pinniped.
func (m *migration) step(t *testing.T, number int) string {
	t.Helper()
	block := m.steps[number]
	const apply = "kubectl apply --server-side -f install-pinniped-concierge.yaml\n"
	byKapp := m.installer == "kapp" && strings.Contains(block.Text, apply)
	if byKapp {
		block.Text = strings.Replace(block.Text, apply, "", 1)
	}
	printed := m.types(t, block)
	if byKapp {
		m.kappDeploy(t)
	}
	return printed
}

// migrate runs `pinniped migrate`, which must exit with code want.
func (m *migration) migrate(t *testing.T, want int, args ...string) string {
	t.Helper()
	got := m.asAdmin(t, append([]string{"migrate"}, args...)...)
	if got.code != want {
		t.Fatalf("migrate %q ended with %d:\n%s%s", args, got.code, got.out, got.errOut)
	}
	return got.out
}

func (m *migration) read(t *testing.T, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(m.dir, name)))(t)
	return string(content)
}

// get reads an object of the agent's namespace.
func (m *migration) get(t *testing.T, name string, into client.Object) {
	t.Helper()
	must.Do(t, m.admin.Get(t.Context(), ours(name), into))
}

func (m *migration) deploymentSpec(t *testing.T) appsv1.DeploymentSpec {
	t.Helper()
	var deployment appsv1.Deployment
	m.get(t, "pinniped-concierge", &deployment)
	return deployment.Spec
}

// refuseUnprepared installs the agent over Pinniped without preparation: nothing may change.
func (m *migration) refuseUnprepared(t *testing.T) {
	t.Helper()
	everything := func() string {
		return m.kubectlDoes(t, "get", "--all-namespaces", "--output="+
			`jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`,
			"clusterroles,clusterrolebindings,roles,rolebindings,configmaps,services,serviceaccounts,secrets,deployments,"+
				"customresourcedefinitions,credentialissuers,flowschemas,namespaces,poddisruptionbudgets,"+
				"validatingadmissionpolicies,validatingadmissionpolicybindings")
	}
	before := everything()
	got := m.runWith(t, m.environment, nil, m.install(), agentImage)
	if got.code != 3 || !strings.Contains(got.errOut, "conflict") ||
		!strings.Contains(got.errOut, "pinniped migrate check") {
		t.Errorf("it ended with %d:\n%s%s", got.code, got.out, got.errOut)
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(everything(), "\n")); diff != "" {
		t.Errorf("an installation that was refused has changed something (-before +after):\n%s", diff)
	}
}

// isTheAgents checks that nothing of Pinniped's Deployment is left in the agent's.
func (m *migration) isTheAgents(t *testing.T) {
	t.Helper()
	spec := m.deploymentSpec(t)
	container := spec.Template.Spec.Containers[0]
	if container.Image != agentImage || len(spec.Template.Spec.Containers) != 1 {
		t.Errorf("the containers are %v", spec.Template.Spec.Containers)
	}
	if limit, limited := container.Resources.Limits[corev1.ResourceCPU]; limited {
		t.Errorf("the CPU is still limited to %s", &limit)
	}
	if len(spec.Template.Spec.Volumes) != 1 || spec.Template.Spec.Affinity != nil {
		t.Errorf("there are volumes %v and affinity %v", spec.Template.Spec.Volumes, spec.Template.Spec.Affinity)
	}
	if diff := cmp.Diff(m.deployment.Selector, spec.Selector); diff != "" {
		t.Errorf("another selector:\n%s", diff)
	}
	var config corev1.ConfigMap
	if m.get(t, "pinniped-concierge-config", &config); !strings.Contains(config.Data["pinniped.yaml"], "kubeCertAgent") {
		t.Error("Pinniped's configuration is gone, so that a pod of it that starts again falls over")
	}
}

// startAgent runs the agent, as the pods of the Deployment would.
func (m *migration) startAgent(t *testing.T) *devinstall.Agent {
	t.Helper()
	agent := must.Get(m.StartAgent(t.Context(), "agent-a"))(t)
	waitReady(t, agent)
	// This name is not in DNS.
	kubeconfig := strings.Replace(m.read(t, filepath.Base(m.kubeconfig)), "https://proxy.example.com",
		"https://"+agent.ProxyAddress(), 1)
	must.Do(t, os.WriteFile(m.kubeconfig, []byte(kubeconfig), 0o600))
	return agent
}

// getsIn checks that the user from before can log in through the agent's proxy.
func (m *migration) getsIn(t *testing.T) {
	t.Helper()
	said := m.succeed(t, m.kubectl, "--kubeconfig="+m.kubeconfig, "auth", "whoami",
		"--output=jsonpath={.status.userInfo.username}")
	if said != "pinny" {
		t.Errorf("the user is %q", said)
	}
	m.keptSecrets(t)
}

// keptSecrets checks that the Secrets are as Pinniped created them, without owner references and finalizers.
func (m *migration) keptSecrets(t *testing.T) {
	t.Helper()
	for name, data := range m.secrets {
		var secret corev1.Secret
		m.get(t, name, &secret)
		if !maps.EqualFunc(data, secret.Data, bytes.Equal) {
			t.Errorf("Secret %s has changed", name)
		}
		if len(secret.OwnerReferences) > 0 || len(secret.Finalizers) > 0 {
			t.Errorf("Secret %s has owners %v and finalizers %v", name, secret.OwnerReferences, secret.Finalizers)
		}
	}
}

// rolledOut reports that all pods of the Deployment serve; none can run here.
func (m *migration) rolledOut(t *testing.T) {
	t.Helper()
	var deployment appsv1.Deployment
	m.get(t, "pinniped-concierge", &deployment)
	replicas := ptr.Deref(deployment.Spec.Replicas, 1)
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas,
		AvailableReplicas: replicas,
	}
	must.Do(t, m.admin.Status().Update(t.Context(), &deployment))
}

// nothingOfKapp checks that no labels are left by which kapp would delete the agent's objects.
func (m *migration) nothingOfKapp(t *testing.T) {
	t.Helper()
	left := m.kubectlDoes(t, "get", "--all-namespaces", "--selector=kapp.k14s.io/app", "--output=name",
		"clusterroles,clusterrolebindings,roles,rolebindings,configmaps,services,serviceaccounts,secrets,deployments,"+
			"customresourcedefinitions,credentialissuers,webhookauthenticators,namespaces,apiservices,replicasets")
	if left != "" {
		t.Errorf("kapp still takes these for its own:\n%s", left)
	}
}

// nothingOfTheAgent checks that no objects are left that only the agent's manifests have.
func (m *migration) nothingOfTheAgent(t *testing.T) {
	t.Helper()
	rendered := filepath.Join(t.TempDir(), "upgrade.yaml")
	must.Do(t, os.WriteFile(rendered, []byte(m.succeed(t, m.kubectl, "kustomize", filepath.Join(m.Deploy, "upgrade"))),
		0o600))
	names := func(manifests string) []string {
		said := m.kubectlDoes(t, "create", "--dry-run=client", "--output=name", "--filename="+manifests)
		return strings.Fields(said)
	}
	kept := names(m.manifests)
	for _, name := range names(rendered) {
		if slices.Contains(kept, name) || strings.HasPrefix(name, "customresourcedefinition.") {
			continue
		}
		kind, name, _ := strings.Cut(name, "/")
		if left := m.kubectlDoes(t, "get", "--all-namespaces", "--ignore-not-found", "--output=name",
			"--field-selector=metadata.name="+name, kind); left != "" {
			t.Errorf("%s is left: it belongs into internal/cli/migrate/inventory.go", left)
		}
	}
}

// installPinniped creates all objects that Pinniped's manifests and its program create, with the installer's field
// managers.
func (m *migration) installPinniped(t *testing.T) {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join("testdata", "pinniped.yaml")))(t)
	m.manifests = filepath.Join(m.dir, "install-pinniped-concierge.yaml")
	must.Do(t, os.WriteFile(m.manifests, content, 0o600))
	m.kubectlDoes(t, "apply", "--kustomize="+filepath.Join(m.Deploy, "crds"))
	m.kubectlDoes(t, "wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
	if m.installer == "kapp" {
		m.kappDeploy(t)
	} else {
		m.kubectlDoes(t, "apply", "--filename="+m.manifests)
	}
	var deployment appsv1.Deployment
	m.get(t, "pinniped-concierge", &deployment)
	m.deployment = deployment.Spec
	if m.installer == "kubectl" { // a later change by another manager, so that its fields have two owners
		m.kubectlDoes(t, "set", "env", "--namespace="+devinstall.Namespace, "deployment/pinniped-concierge", "NO_PROXY=.svc")
	}
	owner := []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "Deployment", Name: deployment.Name, UID: deployment.UID,
	}}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: devinstall.Namespace, Name: name, Labels: map[string]string{"app": "pinniped-concierge"},
			OwnerReferences: owner,
		}
	}
	m.makeSecrets(t)
	authenticator := &authenticationv1alpha1.WebhookAuthenticator{Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{
		Endpoint: "https://webhook.example.com",
	}}
	authenticator.Name, authenticator.Labels = "users", deployment.Labels // of the same app, if kapp installed it
	authenticator.Annotations = kappAnnotations(authenticator.Labels)
	objects := []client.Object{
		authenticator,
		&corev1.Service{ObjectMeta: meta("pinniped-concierge-impersonation-proxy-cluster-ip"), Spec: corev1.ServiceSpec{
			Ports:    []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}},
			Selector: map[string]string{"app": "pinniped-concierge"},
		}},
		kubeCertAgent(meta("pinniped-concierge-kube-cert-agent")),
	}
	for name, data := range m.secrets {
		kind := corev1.SecretTypeOpaque
		if data["tls.crt"] != nil {
			kind = corev1.SecretTypeTLS
		}
		objects = append(objects, &corev1.Secret{ObjectMeta: meta(name), Type: kind, Data: data})
	}
	for _, object := range objects {
		must.Do(t, m.admin.Create(t.Context(), object, client.FieldOwner("pinniped-concierge")))
	}
}

func kubeCertAgent(meta metav1.ObjectMeta) *appsv1.Deployment {
	labels := map[string]string{"kube-cert-agent.pinniped.dev": "v3"}
	return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{ServiceAccountName: "pinniped-concierge-kube-cert-agent", Containers: []corev1.Container{{
				Name: "sleeper", Image: "ghcr.io/vmware/pinniped/pinniped-server:v0.47.0",
				Command: []string{"pinniped-concierge-kube-cert-agent", "sleep"},
			}}},
		},
	}}
}

// makeSecrets creates the four Secrets of Pinniped, and a user's kubeconfig with a certificate of its signer.
func (m *migration) makeSecrets(t *testing.T) {
	t.Helper()
	now := time.Now()
	const century = 100 * 365 * 24 * time.Hour
	authority := func(name string, life time.Duration) (ca *certs.CA, key []byte) {
		ca = must.Get(certs.NewCA(name, now, life))(t)
		return ca, must.Get(ca.KeyPEM())(t)
	}
	serves := func(ca *certs.CA, life time.Duration, names ...string) *certs.KeyPair {
		pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: names}, now, life))(t)
		return pair
	}
	serving, servingKey := authority("Pinniped Impersonation Proxy Serving CA", century)
	signer, signerKey := authority("Pinniped Impersonation Proxy Signer CA", 365*24*time.Hour)
	aggregation, aggregationKey := authority("Pinniped Aggregation CA", 30*24*time.Hour)
	proxy := serves(serving, century, "proxy.example.com")
	api := serves(aggregation, 30*24*time.Hour, "pinniped-concierge-api.pinniped-concierge.svc",
		"pinniped-concierge-api.pinniped-concierge.svc.cluster.local")
	m.secrets = map[string]map[string][]byte{
		"pinniped-concierge-impersonation-proxy-ca-certificate": {"ca.crt": serving.CertPEM(), "ca.key": servingKey},
		"pinniped-concierge-impersonation-proxy-tls-serving-certificate": {
			"tls.crt": proxy.CertPEM, "tls.key": proxy.KeyPEM,
		},
		"pinniped-concierge-impersonation-proxy-signer-ca-certificate": {
			"caCertificate": signer.CertPEM(), "caCertificatePrivateKey": signerKey,
		},
		"pinniped-concierge-api-tls-serving-certificate": {
			"caCertificate": aggregation.CertPEM(), "caCertificatePrivateKey": aggregationKey,
			"tlsCertificateChain": api.CertPEM, "tlsPrivateKey": api.KeyPEM,
		},
	}
	user := must.Get(signer.IssueClient(certs.ClientIdentity{Username: "pinny"}, now, time.Hour))(t)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://proxy.example.com", CertificateAuthorityData: serving.CertPEM(), TLSServerName: "proxy.example.com",
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: user.CertPEM, ClientKeyData: user.KeyPEM}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	m.kubeconfig = filepath.Join(m.dir, "pinny.yaml")
	must.Do(t, clientcmd.WriteToFile(*config, m.kubeconfig))
}

// kappDeploy simulates `kapp deploy`: it creates or replaces whole objects, each with kapp's label, annotation and
// field manager. The label is also in selectors and in the pods' labels.
func (m *migration) kappDeploy(t *testing.T) {
	t.Helper()
	content := must.Get(os.ReadFile(m.manifests))(t)
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		own := map[string]string{"kapp.k14s.io/app": "1763800000000000000", "kapp.k14s.io/association": "v1.0123456789abcdef"}
		label := func(labels map[string]string) map[string]string {
			all := maps.Clone(labels)
			if all == nil {
				all = map[string]string{}
			}
			maps.Copy(all, own)
			return all
		}
		object.SetLabels(label(object.GetLabels()))
		annotations := kappAnnotations(object.GetLabels())
		maps.Copy(annotations, object.GetAnnotations())
		object.SetAnnotations(annotations)
		if object.GetKind() == "Deployment" {
			for _, field := range []struct {
				path []string
				add  []string
			}{
				{[]string{"spec", "selector", "matchLabels"}, []string{"kapp.k14s.io/app"}},
				{[]string{"spec", "template", "metadata", "labels"}, []string{"kapp.k14s.io/app", "kapp.k14s.io/association"}},
			} {
				labels, _, _ := unstructured.NestedStringMap(object.Object, field.path...)
				for _, key := range field.add {
					labels[key] = own[key]
				}
				must.Do(t, unstructured.SetNestedStringMap(object.Object, labels, field.path...))
			}
		}
		there := object.DeepCopy()
		err := m.admin.Get(t.Context(), client.ObjectKeyFromObject(object), there)
		if apierrors.IsNotFound(err) {
			err = m.admin.Create(t.Context(), object, client.FieldOwner("kapp"))
		} else if err == nil {
			object.SetResourceVersion(there.GetResourceVersion())
			object.SetManagedFields(there.GetManagedFields())
			if status, ok := there.Object["status"]; ok {
				object.Object["status"] = status
			}
			err = m.admin.Update(t.Context(), object, client.FieldOwner("kapp"))
		}
		if err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// kappAnnotations returns kapp's annotations for an object with its label.
func kappAnnotations(labels map[string]string) map[string]string {
	if labels["kapp.k14s.io/app"] == "" {
		return map[string]string{}
	}
	return map[string]string{"kapp.k14s.io/identity": "v1;/object;v1", "kapp.k14s.io/original": "{}"}
}
