package main

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/test/bench/recording"
)

// runController runs a controller as people write them, until ctx ends: it is elected, keeps a copy of each ConfigMap
// with a label by server-side apply, notes that in an annotation, and tells of it in an event.
func runController(ctx context.Context, config *rest.Config) error {
	log.SetLogger(logr.Discard())
	m, err := manager.New(config, manager.Options{
		LeaderElection:                true,
		LeaderElectionID:              "controller",
		LeaderElectionNamespace:       recording.Namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       server.Options{BindAddress: "0"},
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{recording.Namespace: {}}},
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	c := &copier{client: m.GetClient(), manager: m}
	if err := ctrl.NewControllerManagedBy(m).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(c); err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("running the controller: %w", err)
	}
	return nil
}

type copier struct {
	client  client.Client
	manager manager.Manager
}

// Reconcile implements reconcile.Reconciler.
func (c *copier) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var found corev1.ConfigMap
	if err := c.client.Get(ctx, req.NamespacedName, &found); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if found.Labels["watched"] != "true" {
		return ctrl.Result{}, nil
	}
	made := applycorev1.Secret(found.Name+"-copy", found.Namespace).WithStringData(found.Data)
	if err := c.client.Apply(ctx, made, client.FieldOwner("copier"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, err
	}
	if found.Annotations["copied"] != "" {
		return ctrl.Result{}, nil
	}
	before := found.DeepCopy()
	if found.Annotations == nil {
		found.Annotations = map[string]string{}
	}
	found.Annotations["copied"] = "true"
	if err := c.client.Patch(ctx, &found, client.MergeFrom(before)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	c.manager.GetEventRecorder("copier").Eventf(&found, nil, corev1.EventTypeNormal, "Copied", "Copy", "copied")
	return ctrl.Result{}, nil
}
