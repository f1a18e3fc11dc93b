package concierge

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// admissionPlugin is one admission plugin and the resources it cannot work without.
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

// ValidateAdmissionPlugins returns an error when names holds a name that is no admission plugin of this server.
func ValidateAdmissionPlugins(names []string) error {
	var known []string
	for _, plugin := range admissionPlugins() {
		known = append(known, plugin.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown admission plugin %q, known are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// choosePlugins returns the names of the plugins to run, and of those left out because the API server is too old to
// serve what they need. Such a plugin would wait for it for ever, and hold up every request.
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

// addAdmission puts the cluster's admission before the storages.
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
	served, err := servedAdmissionResources(client)
	if err != nil {
		return err
	}
	names, unserved := choosePlugins(
		admissionPlugins(),
		disabled,
		func(resource string) bool { return slices.Contains(served, resource) },
	)
	if len(unserved) > 0 {
		klog.FromContext(ctx).
			Info("Left out admission plugins that this version of the API server does not support", "plugins", unserved)
	}

	plugins := admission.NewPlugins()
	genericapiserver.RegisterAllAdmissionPlugins(plugins)
	pluginConfig, err := admission.ReadAdmissionConfiguration(names, "", nil)
	if err != nil {
		return fmt.Errorf("configuring admission plugins: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery()))
	chain, err := plugins.NewFromPlugins(names, pluginConfig, admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(config.APIServerID),
		initializer.New(client, dynamicClient, shared, config.Authorization.Authorizer,
			config.FeatureGate, config.EffectiveVersion, config.DrainedNotify(), mapper),
	}, nil)
	if err != nil {
		return fmt.Errorf("starting admission plugins: %w", err)
	}
	config.AdmissionControl = withholdToken{chain}
	return config.AddPostStartHook("reset-admission-discovery", func(hook genericapiserver.PostStartHookContext) error {
		go wait.Until(mapper.Reset, 30*time.Second, hook.Done())
		return nil
	})
}

func servedAdmissionResources(client kubernetes.Interface) ([]string, error) {
	group := admissionregistrationv1.SchemeGroupVersion.String()
	list, err := client.Discovery().ServerResourcesForGroupVersion(group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking the API server for its resources in %s: %w", group, err)
	}
	var names []string
	for _, resource := range list.APIResources {
		names = append(names, resource.Name)
	}
	return names, nil
}

// withholdToken keeps the token of a TokenCredentialRequest from mutating webhooks and policies: it is for its
// authenticator alone. (Validation is given a copy without the token by the storage.)
type withholdToken struct{ admission.Interface }

var _ interface {
	admission.MutationInterface
	admission.ValidationInterface
} = withholdToken{}

func (w withholdToken) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	mutating, ok := w.Interface.(admission.MutationInterface)
	if !ok {
		return nil
	}
	request, ok := attributes.GetObject().(*loginv1alpha1.TokenCredentialRequest)
	if !ok {
		return mutating.Admit(ctx, attributes, o)
	}
	token := request.Spec.Token
	request.Spec.Token = ""
	err := mutating.Admit(ctx, attributes, o)
	request.Spec.Token = token
	return err
}

func (w withholdToken) Validate(
	ctx context.Context,
	attributes admission.Attributes,
	o admission.ObjectInterfaces,
) error {
	validating, ok := w.Interface.(admission.ValidationInterface)
	if !ok {
		return nil
	}
	return validating.Validate(ctx, attributes, o)
}
