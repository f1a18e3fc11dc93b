package integration

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
