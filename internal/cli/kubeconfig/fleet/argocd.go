package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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

// argoTLSConfig and argoExecConfig are the parts of the JSON that are needed.
type (
	argoTLSConfig struct {
		Insecure   bool   `json:"insecure"`
		ServerName string `json:"serverName"`
		CAData     []byte `json:"caData"`
	}
	argoExecConfig struct {
		Command    string            `json:"command"`
		Args       []string          `json:"args"`
		Env        map[string]string `json:"env"`
		APIVersion string            `json:"apiVersion"`
	}
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
		TLS  argoTLSConfig   `json:"tlsClientConfig"`
		Exec *argoExecConfig `json:"execProviderConfig"`
	}
	if content := secret.Data[argoConfig]; len(content) > 0 {
		if err := json.Unmarshal(content, &config); err != nil {
			return nil, fmt.Errorf("reading the JSON under %q: %w", argoConfig, err)
		}
	}
	name := string(secret.Data[argoName])
	if name == "" {
		name = secret.Name
	}
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
