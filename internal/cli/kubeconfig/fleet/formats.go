package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// flux reads and writes the Secrets in spec.kubeConfig.secretRef of Flux's Kustomizations and HelmReleases.
type flux struct {
	whole
	keys map[string][]string // by NAMESPACE/NAME of the Secret; an empty key is Flux's default
}

// The Flux resources with a reference to a kubeconfig.
var fluxResources = []struct{ path, resource string }{
	{"/apis/kustomize.toolkit.fluxcd.io/v1", "kustomizations"},
	{"/apis/helm.toolkit.fluxcd.io/v2", "helmreleases"},
}

func (*flux) Kind() string     { return "flux" }
func (*flux) Selector() string { return "" }

// prepare finds the Secrets. A management cluster may lack one of the resources.
func (f *flux) prepare(ctx context.Context, s *Secrets) error {
	f.keys = map[string][]string{}
	var missing error
	there := false
	for _, one := range fluxResources {
		err := s.list(ctx, one.path, one.resource, "", f.note)
		if apierrors.IsNotFound(err) {
			missing = err
			continue
		}
		if err != nil {
			return err
		}
		there = true
	}
	if !there {
		return missing
	}
	return nil
}

func (f *flux) note(raw json.RawMessage) error {
	var object struct {
		Metadata struct {
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			KubeConfig struct {
				SecretRef struct {
					Name string `json:"name"`
					Key  string `json:"key"`
				} `json:"secretRef"`
			} `json:"kubeConfig"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return err
	}
	if ref := object.Spec.KubeConfig.SecretRef; ref.Name != "" {
		name := object.Metadata.Namespace + "/" + ref.Name
		f.keys[name] = append(f.keys[name], ref.Key)
	}
	return nil
}

// Keys returns the distinct keys that Flux reads: that of the reference, or else "value", or "value.yaml".
func (f *flux) Keys(secret *corev1.Secret) []string {
	var keys []string
	for _, key := range f.keys[secret.Namespace+"/"+secret.Name] {
		if key == "" {
			key = "value"
			if _, ok := secret.Data[key]; !ok {
				key = "value.yaml"
			}
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// clusterAPI reads and writes the Secrets NAME-kubeconfig of Cluster API, with the kubeconfig in "value".
type clusterAPI struct{ whole }

const (
	clusterAPIType   = "cluster.x-k8s.io/secret"
	clusterAPILabel  = "cluster.x-k8s.io/cluster-name"
	clusterAPISuffix = "-kubeconfig"
	clusterAPIKey    = "value"
)

func (clusterAPI) Kind() string     { return "capi" }
func (clusterAPI) Selector() string { return clusterAPILabel }

func (clusterAPI) Keys(secret *corev1.Secret) []string {
	// Early versions of Cluster API used type Opaque.
	ours := secret.Type == clusterAPIType || secret.Type == corev1.SecretTypeOpaque
	name := secret.Labels[clusterAPILabel]
	if !ours || name == "" || !strings.HasPrefix(secret.Name, name) || !strings.HasSuffix(secret.Name, clusterAPISuffix) {
		return nil
	}
	return []string{clusterAPIKey}
}

// whole reads and writes the kubeconfig under a key.
type whole struct{}

func (whole) Read(secret *corev1.Secret, key string) ([]byte, error) {
	content, ok := secret.Data[key]
	if !ok {
		return nil, fmt.Errorf("the Secret has no key %q", key)
	}
	return content, nil
}

func (whole) Write(_ *corev1.Secret, key string, content []byte) (map[string][]byte, error) {
	return map[string][]byte{key: content}, nil
}

// argoCD reads and writes the cluster Secrets of Argo CD. "server" has the server, and "config" JSON with the CA bundle
// and optionally a credential plugin. The rest of the package sees kubeconfigs with one cluster.
type argoCD struct{}

const (
	argoServer = "server"
	argoName   = "name"
	argoConfig = "config"
	argoTLS    = "tlsClientConfig"
	argoExec   = "execProviderConfig"
)

func (argoCD) Kind() string     { return "argocd" }
func (argoCD) Selector() string { return "argocd.argoproj.io/secret-type=cluster" }

func (argoCD) Keys(secret *corev1.Secret) []string {
	if len(secret.Data[argoServer]) == 0 {
		return nil
	}
	return []string{argoConfig}
}

func (argoCD) Read(secret *corev1.Secret, _ string) ([]byte, error) {
	var config struct {
		TLS struct {
			Insecure   bool   `json:"insecure"`
			ServerName string `json:"serverName"`
			CAData     []byte `json:"caData"`
		} `json:"tlsClientConfig"`
		Exec *struct {
			Command    string            `json:"command"`
			Args       []string          `json:"args"`
			Env        map[string]string `json:"env"`
			APIVersion string            `json:"apiVersion"`
		} `json:"execProviderConfig"`
	}
	if content := secret.Data[argoConfig]; len(content) > 0 {
		if err := json.Unmarshal(content, &config); err != nil {
			return nil, fmt.Errorf("reading the JSON under %q: %w", argoConfig, err)
		}
	}
	name := cmp.Or(string(secret.Data[argoName]), secret.Name)
	made := clientcmdapi.NewConfig()
	made.Clusters[name] = &clientcmdapi.Cluster{
		Server: string(secret.Data[argoServer]), CertificateAuthorityData: config.TLS.CAData,
		InsecureSkipTLSVerify: config.TLS.Insecure, TLSServerName: config.TLS.ServerName,
	}
	if config.TLS.Insecure {
		made.Clusters[name].CertificateAuthorityData = nil
	}
	if exec := config.Exec; exec != nil {
		plugin := &clientcmdapi.ExecConfig{
			Command: exec.Command, Args: exec.Args, APIVersion: exec.APIVersion,
			InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}
		for variable, value := range exec.Env {
			plugin.Env = append(plugin.Env, clientcmdapi.ExecEnvVar{Name: variable, Value: value})
		}
		made.AuthInfos[name] = &clientcmdapi.AuthInfo{Exec: plugin}
	}
	return clientcmd.Write(*made)
}

// Write puts the CA bundle and the plugin's arguments into the JSON. The rest of it is unchanged.
func (argoCD) Write(secret *corev1.Secret, _ string, content []byte) (map[string][]byte, error) {
	made, err := clientcmd.Load(content)
	if err != nil {
		return nil, err
	}
	config := map[string]json.RawMessage{}
	if before := secret.Data[argoConfig]; len(before) > 0 {
		if err := json.Unmarshal(before, &config); err != nil {
			return nil, fmt.Errorf("reading the JSON under %q: %w", argoConfig, err)
		}
	}
	for _, cluster := range made.Clusters {
		var value any
		if len(cluster.CertificateAuthorityData) > 0 {
			value = cluster.CertificateAuthorityData
		}
		if err := putJSON(config, argoTLS, "caData", value); err != nil {
			return nil, err
		}
	}
	for _, user := range made.AuthInfos {
		if user.Exec == nil {
			continue
		}
		if err := putJSON(config, argoExec, "args", user.Exec.Args); err != nil {
			return nil, err
		}
	}
	encoded, err := marshal(config)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{argoConfig: encoded}, nil
}

// putJSON sets a field of a nested object, or removes it if value is nil.
func putJSON(config map[string]json.RawMessage, object, field string, value any) error {
	inner := map[string]json.RawMessage{}
	if before, ok := config[object]; ok {
		if err := json.Unmarshal(before, &inner); err != nil {
			return fmt.Errorf("reading %q: %w", object, err)
		}
		if inner == nil {
			inner = map[string]json.RawMessage{}
		}
	}
	if value == nil {
		delete(inner, field)
	} else {
		encoded, err := marshal(value)
		if err != nil {
			return err
		}
		inner[field] = encoded
	}
	encoded, err := marshal(inner)
	if err != nil {
		return errors.Join(errors.New("encoding the JSON"), err)
	}
	config[object] = encoded
	return nil
}

// marshal is json.Marshal without HTML escapes.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}
