package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kubectl returns the path of kubectl: the one on the PATH, else one in KUBEBUILDER_ASSETS or bin/controlplane. The
// error is a *MissingProgramError.
func (c *Cluster) Kubectl() (string, error) { return c.finder.kubectl() }

// Install applies manifests with `kubectl apply --server-side` as the admin, and returns when all
// CustomResourceDefinitions of the cluster are established and served. Each path is a file, a directory of files, or a
// directory with a kustomization. A path may have definitions and their resources.
//
// It takes over fields of other owners, so it reverts PointAPIServiceAt if the manifests set the port.
func (c *Cluster) Install(ctx context.Context, paths ...string) error {
	kubectl, err := c.Kubectl()
	if err != nil {
		return fmt.Errorf("installing manifests: %w", err)
	}
	for _, path := range paths {
		if err := c.install(ctx, kubectl, path); err != nil {
			return fmt.Errorf("installing %q: %w", path, err)
		}
	}
	return nil
}

func (c *Cluster) install(ctx context.Context, kubectl, path string) error {
	flag, err := manifestFlag(path)
	if err != nil {
		return err
	}
	args := []string{
		"apply", "--server-side", "--force-conflicts", "--field-manager=" + fieldManager, flag, path,
	}
	applyErr := c.runKubectl(ctx, kubectl, args...)
	if applyErr != nil && !strings.Contains(applyErr.Error(), "ensure CRDs are installed first") {
		return applyErr
	}
	if err := c.waitForCRDs(ctx); err != nil {
		return err
	}
	if applyErr != nil {
		// The definitions are established now, so their resources can be applied.
		return c.runKubectl(ctx, kubectl, args...)
	}
	return nil
}

// manifestFlag returns "-k" for a directory with a kustomization and "-f" for everything else.
func manifestFlag(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "-f", nil
	}
	for _, name := range []string{"kustomization.yaml", "kustomization.yml", "Kustomization"} {
		if _, err := os.Stat(filepath.Join(path, name)); err == nil {
			return "-k", nil
		}
	}
	return "-f", nil
}

func (c *Cluster) runKubectl(ctx context.Context, kubectl string, args ...string) error {
	// Later clusters reuse ports, so the user's discovery cache must not be shared.
	args = append(
		[]string{"--kubeconfig=" + c.AdminKubeconfig(), "--cache-dir=" + filepath.Join(c.dir, "kubectl-cache")},
		args...)
	command := exec.CommandContext(ctx, kubectl, args...)
	command.WaitDelay = time.Second
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("running kubectl: %w: %s", errors.Join(err, context.Cause(ctx)), strings.TrimSpace(stderr.String()))
	}
	return nil
}

// waitForCRDs returns when every CustomResourceDefinition is established and its resources can be listed.
func (c *Cluster) waitForCRDs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.StartTimeout)
	defer cancel()
	definitions := c.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	for {
		pending, err := pendingCRDs(ctx, definitions.List, c.probeAPI.check)
		if err == nil && len(pending) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = errors.New(strings.Join(pending, "; "))
			}
			return fmt.Errorf("waiting for CustomResourceDefinitions: %w (%w)", context.Cause(ctx), err)
		case <-time.After(pollInterval):
		}
	}
}

type (
	listFunc  func(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error)
	checkFunc func(ctx context.Context, path string) error
)

// pendingCRDs returns why each CustomResourceDefinition that is not usable yet is not.
func pendingCRDs(ctx context.Context, list listFunc, check checkFunc) ([]string, error) {
	found, err := list(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing them: %w", err)
	}
	var pending []string
	for _, definition := range found.Items {
		if state := conditionStatus(&definition, "Established"); state != string(metav1.ConditionTrue) {
			pending = append(pending, definition.GetName()+" is not established")
			continue
		}
		for _, path := range servedPaths(&definition) {
			if err := check(ctx, path+"?limit=1"); err != nil {
				pending = append(pending, fmt.Sprintf("%s is not served: %v", definition.GetName(), err))
			}
		}
	}
	return pending, nil
}

// conditionStatus returns the status of a condition, or "" if there is none.
func conditionStatus(object *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		condition, ok := entry.(map[string]any)
		if ok && condition["type"] == kind {
			status, _ := condition["status"].(string)
			return status
		}
	}
	return ""
}

// servedPaths returns the API paths of a definition's resources, one for each served version.
func servedPaths(definition *unstructured.Unstructured) []string {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	var paths []string
	for _, entry := range versions {
		if version, ok := entry.(map[string]any); ok && version["served"] == true {
			paths = append(paths, fmt.Sprintf("/apis/%s/%v/%s", group, version["name"], plural))
		}
	}
	return paths
}

// PointServiceAt points a Service at a port of this machine, so that the API server reaches an aggregated API or a
// webhook in a local process: the Service gets the type ExternalName with localhost. It is created if it does not
// exist; its namespace must exist.
//
// The API server takes the port from the object that refers to the Service, not from the Service: see
// PointAPIServiceAt. The serving certificate must be valid for "<name>.<namespace>.svc".
func (c *Cluster) PointServiceAt(ctx context.Context, namespace, name string, port int) error {
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "Service",
		"metadata":   map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"type":         "ExternalName",
			"externalName": "localhost",
			"ports":        []any{map[string]any{"name": "https", "port": int64(port), "protocol": "TCP"}},
		},
	}}
	services := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(namespace)
	// A merge patch replaces the whole list of ports. A server-side apply would keep ports of other field managers.
	patch, err := json.Marshal(map[string]any{"spec": service.Object["spec"]})
	if err != nil {
		return err
	}
	_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, service, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("pointing Service %q at port %d: %w", namespace+"/"+name, port, err)
	}
	return nil
}

// PointAPIServiceAt changes only the port of an existing APIService. Together with PointServiceAt, it points it at a
// process on this machine.
func (c *Cluster) PointAPIServiceAt(ctx context.Context, name string, port int) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"service": map[string]any{"port": port}}})
	if err != nil {
		return err
	}
	services := c.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
	})
	_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("pointing APIService %q at port %d: %w", name, port, err)
	}
	return nil
}
