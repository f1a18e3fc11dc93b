package concierge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	genericapiserver "k8s.io/apiserver/pkg/server"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"

	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
)

// admissionPlugin is an admission plugin and the resources that it requires.
type admissionPlugin struct {
	name  string
	needs []string // of admissionregistration.k8s.io/v1
}

// admissionPlugins returns the plugins in the order in which they run.
func admissionPlugins() []admissionPlugin {
	return []admissionPlugin{
		{name: lifecycle.PluginName},
		{name: mutatingpolicy.PluginName, needs: []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}},
		{name: mutatingwebhook.PluginName, needs: []string{"mutatingwebhookconfigurations"}},
		{
			name:  validatingpolicy.PluginName,
			needs: []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"},
		},
		{name: validatingwebhook.PluginName, needs: []string{"validatingwebhookconfigurations"}},
	}
}

// ValidateAdmissionPlugins returns an error if names has an unknown admission plugin.
func ValidateAdmissionPlugins(names []string) error {
	var known []string
	for _, plugin := range admissionPlugins() {
		known = append(known, plugin.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown admission plugin %q; known: %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// choosePlugins returns the names of the plugins to run, and of those left out because the API server does not serve
// what they need. Such a plugin would wait for it forever, and block every request.
func choosePlugins(
	plugins []admissionPlugin,
	disabled []string,
	served func(resource string) bool,
) (run, unserved []string) {
	for _, plugin := range plugins {
		switch {
		case slices.Contains(disabled, plugin.name):
		case slices.ContainsFunc(plugin.needs, func(resource string) bool { return !served(resource) }):
			unserved = append(unserved, plugin.name)
		default:
			run = append(run, plugin.name)
		}
	}
	return run, unserved
}

// addAdmission adds the cluster's admission to the server.
func addAdmission(
	ctx context.Context,
	config *genericapiserver.Config,
	disabled []string,
	client kubernetes.Interface,
	dynamicClient dynamic.Interface,
	shared informers.SharedInformerFactory,
) error {
	if err := ValidateAdmissionPlugins(disabled); err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery()))
	current := &clusterAdmission{
		client: client, disabled: disabled,
		build: func(names []string) (admission.Interface, error) {
			plugins := admission.NewPlugins()
			genericapiserver.RegisterAllAdmissionPlugins(plugins)
			pluginConfig, err := admission.ReadAdmissionConfiguration(names, "", nil)
			if err != nil {
				return nil, fmt.Errorf("configuring admission plugins: %w", err)
			}
			chain, err := plugins.NewFromPlugins(names, pluginConfig, admission.PluginInitializers{
				initializer.NewAPIServerIDInitializer(config.APIServerID),
				initializer.New(client, dynamicClient, shared, config.Authorization.Authorizer,
					config.FeatureGate, config.EffectiveVersion, config.DrainedNotify(), mapper),
			}, nil)
			if err != nil {
				return nil, fmt.Errorf("starting admission plugins: %w", err)
			}
			return chain, nil
		},
	}
	if _, err := current.choose(ctx); err != nil {
		return err
	}
	config.AdmissionControl = current
	return config.AddPostStartHook("follow-admission-discovery", func(hook genericapiserver.PostStartHookContext) error {
		go wait.Until(func() {
			mapper.Reset()
			switch changed, err := current.choose(ctx); {
			case err != nil:
				klog.FromContext(ctx).V(2).Info("Failed to update admission plugins", "problem", err.Error())
			case changed:
				shared.Start(hook.Done()) // for new plugins
			}
		}, discoveryInterval, hook.Done())
		return nil
	})
}

// discoveryInterval is how often to check which resources the API server serves. They change when it is upgraded, or
// when several API servers have different versions.
const discoveryInterval = 30 * time.Second

// clusterAdmission is a chain of the admission plugins that the API server currently supports. It is safe for
// concurrent use, except choose.
type clusterAdmission struct {
	client   kubernetes.Interface
	disabled []string
	build    func(names []string) (admission.Interface, error)

	names []string
	chain atomic.Pointer[admission.Interface]
}

// choose runs the plugins that the API server currently supports, and reports whether they changed. A request waits
// until a new plugin has loaded its policies.
func (c *clusterAdmission) choose(ctx context.Context) (changed bool, err error) {
	served, err := servedAdmissionResources(c.client)
	if err != nil {
		return false, err
	}
	names, unserved := choosePlugins(
		admissionPlugins(),
		c.disabled,
		func(resource string) bool { return slices.Contains(served, resource) },
	)
	if c.chain.Load() != nil && slices.Equal(names, c.names) {
		return false, nil
	}
	chain, err := c.build(names)
	if err != nil {
		return false, err
	}
	if c.chain.Load() != nil || len(unserved) > 0 {
		klog.FromContext(ctx).
			Info("Chose the admission plugins that the API server supports", "plugins", names, "unsupported", unserved)
	}
	c.names = names
	c.chain.Store(&chain)
	return true, nil
}

var _ interface {
	admission.MutationInterface
	admission.ValidationInterface
} = &clusterAdmission{}

// Handles implements admission.Interface.
func (c *clusterAdmission) Handles(operation admission.Operation) bool {
	return (*c.chain.Load()).Handles(operation)
}

// Admit implements admission.MutationInterface. It hides the token of a TokenCredentialRequest from mutating webhooks
// and policies: it is only for its authenticator. (For validation, the storage passes a copy without the token.)
func (c *clusterAdmission) Admit(
	ctx context.Context,
	attributes admission.Attributes,
	o admission.ObjectInterfaces,
) error {
	if request, ok := attributes.GetObject().(*loginv1alpha1.TokenCredentialRequest); ok {
		token := request.Spec.Token
		request.Spec.Token = ""
		defer func() { request.Spec.Token = token }()
	}
	if mutating, ok := (*c.chain.Load()).(admission.MutationInterface); ok {
		return mutating.Admit(ctx, attributes, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (c *clusterAdmission) Validate(
	ctx context.Context,
	attributes admission.Attributes,
	o admission.ObjectInterfaces,
) error {
	if validating, ok := (*c.chain.Load()).(admission.ValidationInterface); ok {
		return validating.Validate(ctx, attributes, o)
	}
	return nil
}

func servedAdmissionResources(client kubernetes.Interface) ([]string, error) {
	group := admissionregistrationv1.SchemeGroupVersion.String()
	list, err := client.Discovery().ServerResourcesForGroupVersion(group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the API server's resources in %s: %w", group, err)
	}
	var names []string
	for _, resource := range list.APIResources {
		names = append(names, resource.Name)
	}
	return names, nil
}
