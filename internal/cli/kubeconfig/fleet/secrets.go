package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

const (
	// fieldManager is our name in the managed fields of Secrets.
	fieldManager = "pinniped-kubeconfig-rotate"
	pageSize     = "500"
	// writes is the maximum number of attempts to write a Secret that others change concurrently.
	writes = 4
)

// Secrets are kubeconfigs in the Secrets of a management cluster.
type Secrets struct {
	// Format selects the Secrets and their format.
	Format Format
	// Namespaces to search; empty for all.
	Namespaces []string
	// Selector is a label selector for Secrets; empty for all of the format.
	Selector string

	client *rest.RESTClient
}

// Format is the way a tool stores kubeconfigs in Secrets.
type Format interface {
	// Kind is capi, argocd or flux.
	Kind() string
	// Selector is the label selector for its Secrets; empty if there is none.
	Selector() string
	// Keys returns the keys of a Secret with a kubeconfig; none if it is another kind of Secret.
	Keys(secret *corev1.Secret) []string
	// Read returns the kubeconfig under a key.
	Read(secret *corev1.Secret, key string) ([]byte, error)
	// Write returns the data to change in the Secret for a new kubeconfig under a key.
	Write(secret *corev1.Secret, key string, content []byte) (map[string][]byte, error)
}

// lister is a Format that finds its Secrets through other objects.
type lister interface {
	prepare(ctx context.Context, s *Secrets) error
}

// secretItem is the location of a kubeconfig in a Secret.
type secretItem struct{ namespace, name, key string }

// NewSecrets returns a Place. It sends no request.
func NewSecrets(config *rest.Config, format Format, namespaces []string, selector string) (*Secrets, error) {
	if _, err := labels.Parse(selector); err != nil {
		return nil, fmt.Errorf("reading the label selector %q: %w", selector, err)
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	shared := rest.CopyConfig(config)
	shared.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	shared.ContentType = runtime.ContentTypeJSON
	shared.AcceptContentTypes = runtime.ContentTypeJSON
	shared.GroupVersion = &corev1.SchemeGroupVersion
	shared.APIPath = "/api"
	shared.QPS = -1
	client, err := rest.RESTClientFor(shared)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the management cluster: %w", err)
	}
	return &Secrets{Format: format, Namespaces: namespaces, Selector: selector, client: client}, nil
}

// List implements Place.
func (s *Secrets) List(ctx context.Context) ([]*Item, error) {
	if format, ok := s.Format.(lister); ok {
		if err := format.prepare(ctx, s); err != nil {
			return nil, err
		}
	}
	selector := strings.Trim(s.Format.Selector()+","+s.Selector, ",")
	var items []*Item
	err := s.list(ctx, "/api/v1", "secrets", selector, func(raw json.RawMessage) error {
		var secret corev1.Secret
		if err := json.Unmarshal(raw, &secret); err != nil {
			return fmt.Errorf("decoding a Secret: %w", err)
		}
		for _, key := range s.Format.Keys(&secret) {
			items = append(items, s.item(&secret, key))
		}
		return nil
	})
	return items, err
}

func (s *Secrets) item(secret *corev1.Secret, key string) *Item {
	id := secret.Namespace + "/" + secret.Name + "/" + key
	item := &Item{
		Kind: s.Format.Kind(), ID: id, place: s,
		Shown:  fmt.Sprintf("Secret %s/%s (%s)", secret.Namespace, secret.Name, s.Format.Kind()),
		secret: &secretItem{secret.Namespace, secret.Name, key},
	}
	content, err := s.Format.Read(secret, key)
	if err != nil {
		item.Err = err
		return item
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		item.Err = fmt.Errorf("%w: %w", kubeconfig.ErrDamaged, err)
		return item
	}
	for _, trust := range kubeconfig.AllTrusts(config.DeepCopy()) {
		// Files in the kubeconfig are on another machine.
		if cluster := config.Clusters[trust.Name]; trust.Kind == "cluster" && cluster.CertificateAuthority != "" &&
			len(cluster.CertificateAuthorityData) == 0 {
			trust.CABundle, trust.Err = nil, errors.New("its CA bundle is in a file on another machine")
		}
		item.trusts = append(item.trusts, trust)
	}
	return item
}

// list calls each for every object of a resource in the namespaces.
func (s *Secrets) list(ctx context.Context, path, resource, selector string, each func(json.RawMessage) error) error {
	namespaces := s.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		at := path
		if namespace != "" {
			at += "/namespaces/" + url.PathEscape(namespace)
		}
		for next := ""; ; {
			request := s.client.Get().AbsPath(at, resource).Param("limit", pageSize)
			if selector != "" {
				request.Param("labelSelector", selector)
			}
			if next != "" {
				request.Param("continue", next)
			}
			raw, err := request.Do(ctx).Raw()
			if err != nil {
				return fmt.Errorf("listing %s: %w", resource, explained(err, raw))
			}
			var page struct {
				Metadata metav1.ListMeta   `json:"metadata"`
				Items    []json.RawMessage `json:"items"`
			}
			if err := json.Unmarshal(raw, &page); err != nil {
				return fmt.Errorf("listing %s: %w", resource, err)
			}
			for _, item := range page.Items {
				if err := each(item); err != nil {
					return err
				}
			}
			if next = page.Metadata.Continue; next == "" {
				break
			}
		}
	}
	return nil
}

// Update implements Place. It writes a merge patch with UID and resourceVersion, which keeps other fields, and fails if
// the Secret has changed or was replaced since it was read.
func (s *Secrets) Update(ctx context.Context, item *Item, update kubeconfig.FileUpdate) (*kubeconfig.Rotation, error) {
	at := item.secret
	for try := 1; ; try++ {
		rotation, err := s.update(ctx, at, update)
		if err == nil {
			return rotation, nil
		}
		if !apierrors.IsConflict(err) || try == writes {
			return nil, fmt.Errorf("changing Secret %s/%s: %w", at.namespace, at.name, err)
		}
	}
}

func (s *Secrets) update(
	ctx context.Context,
	at *secretItem,
	update kubeconfig.FileUpdate,
) (*kubeconfig.Rotation, error) {
	path := []string{"/api/v1/namespaces", at.namespace, "secrets", at.name}
	raw, err := s.client.Get().AbsPath(path...).Do(ctx).Raw()
	if err != nil {
		return nil, explained(err, raw)
	}
	var secret corev1.Secret
	if err := json.Unmarshal(raw, &secret); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	content, err := s.Format.Read(&secret, at.key)
	if err != nil {
		return nil, err
	}
	rotation, err := update.Change(content)
	if err != nil || update.DryRun || !rotation.Changed() {
		return rotation, err
	}
	data, err := s.Format.Write(&secret, at.key, rotation.Content)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": secret.UID, "resourceVersion": secret.ResourceVersion},
		"data":     data,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	raw, err = s.client.Patch(types.MergePatchType).AbsPath(path...).Param("fieldManager", fieldManager).
		Body(patch).Do(ctx).Raw()
	return rotation, explained(err, raw)
}

// explained returns err with the API server's own message.
func explained(err error, raw []byte) error {
	var status metav1.Status
	if err == nil || json.Unmarshal(raw, &status) != nil || status.Kind != "Status" || status.Message == "" {
		return err
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// FormatOf returns the format called kind.
func FormatOf(kind string) (Format, bool) {
	for _, format := range []Format{clusterAPI{}, argoCD{}, &flux{}} {
		if format.Kind() == kind {
			return format, true
		}
	}
	return nil, false
}
