package fleet

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// flux reads and writes the Secrets in spec.kubeConfig.secretRef of Flux's Kustomizations and HelmReleases.
type flux struct {
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
			KubeConfig *struct {
				SecretRef *struct {
					Name string `json:"name"`
					Key  string `json:"key"`
				} `json:"secretRef"`
			} `json:"kubeConfig"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return err
	}
	if object.Spec.KubeConfig == nil || object.Spec.KubeConfig.SecretRef == nil {
		return nil
	}
	ref := object.Spec.KubeConfig.SecretRef
	name := object.Metadata.Namespace + "/" + ref.Name
	f.keys[name] = append(f.keys[name], ref.Key)
	return nil
}

// Keys returns the distinct keys that Flux reads: that of the reference, or else "value", or "value.yaml".
func (f *flux) Keys(secret *corev1.Secret) []string {
	var keys []string
	seen := map[string]bool{}
	for _, key := range f.keys[secret.Namespace+"/"+secret.Name] {
		if key == "" {
			key = "value"
			if _, ok := secret.Data[key]; !ok {
				key = "value.yaml"
			}
		}
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

func (*flux) Read(secret *corev1.Secret, key string) ([]byte, error) { return readKey(secret, key) }

func (*flux) Write(_ *corev1.Secret, key string, content []byte) (map[string][]byte, error) {
	return map[string][]byte{key: content}, nil
}
