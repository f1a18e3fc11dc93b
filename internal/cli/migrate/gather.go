package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// found is an existing object.
type found struct {
	discovery.Ref
	metav1.ObjectMeta
}

// rollout holds the needed fields of the Deployment.
type rollout struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Replicas *int32 `json:"replicas"`
		Template struct {
			Spec struct {
				Containers []container `json:"containers"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration                           int64
		Replicas, UpdatedReplicas, AvailableReplicas int32
	} `json:"status"`
}

type container struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
}

// state is what gather found in the cluster.
type state struct {
	// apiNamespace is the namespace of the Service of the Concierge APIs; empty if they are not registered.
	apiNamespace string
	deployment   *rollout // nil if there is none
	issuer       map[string]any
	config       string // pinniped.yaml of Pinniped
	agentConfig  string // pinniped.yaml of the agent
	shared       []found
	pinnipeds    []found
	agents       []found
	// authenticators are created by users; both Pinniped and the agent need them.
	authenticators []found
	// secret is the Secret of the external certificate; nil if none is configured, or there is none in the namespace.
	secret *corev1.Secret
	// history is the agent's revision history.
	history serving.History
	now     time.Time
	// owned are the Secrets and Services of the namespace that have an owner.
	owned []found
}

// gather reads the cluster. For most objects it requests only metadata, so the only key that it reads is that of the
// external certificate.
func gather(ctx context.Context, cluster *discovery.Client) (*state, error) {
	s := &state{now: time.Now()}
	var err error
	if s.apiNamespace, err = cluster.AgentNamespace(ctx); err != nil && !errors.Is(err, discovery.ErrNotInstalled) {
		return nil, err
	}
	var lock sync.Mutex
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(8)
	ifFound := func(read func() error) {
		group.Go(func() error {
			if err := read(); !errors.Is(err, discovery.ErrNotFound) {
				return err
			}
			return nil
		})
	}
	read := func(refs []discovery.Ref, into *[]found) {
		for _, ref := range refs {
			ifFound(func() error {
				meta, err := cluster.Metadata(reading, ref)
				if err != nil {
					return err
				}
				lock.Lock()
				defer lock.Unlock()
				*into = append(*into, found{ref, *meta})
				return nil
			})
		}
	}
	list := func(ref discovery.Ref, label string, into *[]found, keep func(metav1.ObjectMeta) bool) {
		ifFound(func() error {
			all, err := cluster.ListMetadata(reading, ref.Resource, ref.Namespace, label)
			if err != nil {
				return err
			}
			lock.Lock()
			defer lock.Unlock()
			for _, meta := range all {
				if keep == nil || keep(meta) {
					ref.Name = meta.Name
					*into = append(*into, found{ref, meta})
				}
			}
			return nil
		})
	}
	whole := func(ref discovery.Ref, into any) {
		ifFound(func() error { return cluster.Object(reading, ref, into) })
	}
	read(shared(), &s.shared)
	read(pinnipeds(), &s.pinnipeds)
	read(agents(), &s.agents)
	hasOwner := func(meta metav1.ObjectMeta) bool { return len(meta.OwnerReferences) > 0 }
	list(discovery.Ref{Resource: core("secrets"), Namespace: namespace}, "", &s.owned, hasOwner)
	list(discovery.Ref{Resource: core("services"), Namespace: namespace}, "", &s.owned, hasOwner)
	list(discovery.Ref{Resource: v1("coordination.k8s.io", "leases"), Namespace: namespace}, discovery.ReplicaLabel,
		&s.agents, nil)
	authentication := apis.GroupsFor(apis.DefaultGroupSuffix).Authentication
	for _, resource := range []string{"jwtauthenticators", "webhookauthenticators"} {
		list(discovery.Ref{Resource: authentication.WithResource(resource)}, "", &s.authenticators, nil)
	}
	type configMap struct {
		Data map[string]string `json:"data"`
	}
	var pinnipeds, ours configMap
	var running rollout
	whole(config, &pinnipeds)
	whole(agentConfig, &ours)
	whole(deployment, &running)
	whole(issuer, &s.issuer)
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if running.Metadata.Name != "" {
		s.deployment = &running
	}
	s.config, s.agentConfig = pinnipeds.Data["pinniped.yaml"], ours.Data["pinniped.yaml"]
	s.sort()
	return s, s.gatherTrust(ctx, cluster)
}

// gatherTrust reads the configured external certificate and the revision history.
func (s *state) gatherTrust(ctx context.Context, cluster *discovery.Client) error {
	typed, err := s.typedIssuer()
	if err != nil || typed == nil {
		return err
	}
	if configured := external(typed); configured != nil && !strings.Contains(configured.SecretName, "/") {
		var secret corev1.Secret
		switch err := cluster.Object(ctx, secretOf(configured), &secret); {
		case err == nil:
			s.secret = &secret
		case !errors.Is(err, discovery.ErrNotFound):
			return err
		}
	}
	if objects := typed.Status.Objects; objects != nil && objects.RevisionsConfigMap != "" {
		var kept corev1.ConfigMap
		err := cluster.Object(ctx, in(namespace, core("configmaps"), objects.RevisionsConfigMap)[0], &kept)
		if err == nil {
			s.history, err = serving.Read(kept.Data)
		}
		if err != nil && !errors.Is(err, discovery.ErrNotFound) {
			return fmt.Errorf("reading the published revisions: %w", err)
		}
	}
	return nil
}

// sort sorts the objects in the order of the inventory, and listed objects by name.
func (s *state) sort() {
	for all, inventory := range map[*[]found][]discovery.Ref{
		&s.shared: shared(), &s.pinnipeds: pinnipeds(), &s.agents: agents(), &s.owned: nil, &s.authenticators: nil,
	} {
		position := map[discovery.Ref]int{}
		for i, ref := range inventory {
			position[ref] = i - len(inventory)
		}
		slices.SortFunc(*all, func(a, b found) int {
			if difference := position[a.Ref] - position[b.Ref]; difference != 0 {
				return difference
			}
			return strings.Compare(describe(a.Ref), describe(b.Ref))
		})
	}
}
