package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// strategies returns the strategies in the CredentialIssuer's status.
func (s *state) strategies() []configv1alpha1.CredentialIssuerStrategy {
	var status struct {
		Status struct {
			Strategies []configv1alpha1.CredentialIssuerStrategy `json:"strategies"`
		} `json:"status"`
	}
	if s.decodeIssuer(&status) != nil { // a status of another shape has no strategies
		return nil
	}
	return status.Status.Strategies
}

// loginsAtAPIServer warns about users who do not use the proxy: Pinniped signs their certificates with the cluster's CA
// key, which the agent never reads.
func (s *state) loginsAtAPIServer(kubectl) (*result.MigrationFinding, error) {
	for _, strategy := range s.strategies() {
		if strategy.Type == configv1alpha1.StrategyKubeClusterSigningCertificate &&
			strategy.Status == configv1alpha1.StrategySuccess {
			return about(issuer, result.MigrationLoginsAtAPIServer, false,
				"users may log in directly to the API server, with certificates that Pinniped signs with the "+
					"cluster's own key. The agent signs such certificates only with the component deploy/clustersigner. Without "+
					"this component, these users need kubeconfigs for the impersonation proxy, which must be enabled"), nil
		}
	}
	return nil, nil
}

// carried maps the settings that Pinniped and the agent share to Pinniped's defaults.
var carried = map[string]any{
	"aggregatedAPIServerDisableAdmissionPlugins": []any{},
	"aggregatedAPIServerPort":                    float64(10250),
	"apiGroupSuffix":                             "pinniped.dev",
	"audit.logUsernamesAndGroups":                "disabled",
	"discovery.url":                              nil,
	"impersonationProxyServerPort":               float64(8444),
	"labels":                                     map[string]any{"app": app},
	"log.level":                                  "",
}

// pinnipedsAlone are settings for parts that the agent does not have.
var pinnipedsAlone = []string{
	"api", "kubeCertAgent", "tls", "names.agentServiceAccount", "names.impersonationProxyLegacySecret",
}

// leftBehind lists the settings in before that differ from Pinniped's defaults and from now. path is the path of both
// in their files.
func leftBehind(path string, before, now map[string]any) []string {
	var said []string
	for _, key := range slices.Sorted(maps.Keys(before)) {
		value, full := before[key], strings.TrimPrefix(path+"."+key, ".")
		shipped, known := carried[full]
		if slices.Contains(pinnipedsAlone, full) || same(value, shipped) || same(value, now[key]) || same(value, nil) {
			continue
		}
		if children, ok := value.(map[string]any); ok && !known {
			others, _ := now[key].(map[string]any)
			said = append(said, leftBehind(full, children, others)...)
			continue
		}
		text := inline(value)
		if name, ok := value.(string); ok && path == "names" {
			if strings.HasPrefix(name, app) {
				continue
			}
			text = name
		}
		said = append(said, full+": "+text)
	}
	return said
}

// settingsIn reads a configuration file.
func settingsIn(text string, of discovery.Ref) (map[string]any, error) {
	var settings map[string]any
	if err := yaml.Unmarshal([]byte(text), &settings); err != nil {
		return nil, fmt.Errorf("reading %s: %w", describe(of), err)
	}
	return settings, nil
}

// settingsOfPinniped lists the settings of Pinniped's ConfigMap and Deployment that are not migrated automatically.
func (s *state) settingsOfPinniped(kubectl) (*result.MigrationFinding, error) {
	settings, err := settingsIn(s.config, config)
	if err != nil {
		return nil, err
	}
	said := leftBehind("", settings, nil)
	for _, variable := range s.deployment.container().Env {
		said = append(said, fmt.Sprintf("%s=%s in the Deployment", variable.Name, variable.Value))
	}
	if len(said) == 0 {
		return nil, nil
	}
	return about(config, result.MigrationSettings, false,
		"these settings of Pinniped are not migrated: %s. After the installation, set those that you still need in "+
			"ConfigMap %q or in the Deployment", strings.Join(said, ", "), agentConfig.Name), nil
}

// settingsLeftBehind lists settings in Pinniped's ConfigMap, which the agent does not read. Earlier versions of the
// agent used the same name for theirs.
func (s *state) settingsLeftBehind(k kubectl) (*result.MigrationFinding, error) {
	before, err := settingsIn(s.config, config)
	if err != nil {
		return nil, err
	}
	now, err := settingsIn(s.agentConfig, agentConfig)
	if err != nil {
		return nil, err
	}
	said := leftBehind("", before, now)
	if len(said) == 0 {
		return nil, nil
	}
	return about(
		config,
		result.MigrationSettings,
		false,
		"these settings are not in effect: %s. The agent reads ConfigMap %q. Set what you still need "+
			"there (%s), and restart the agent (%s)",
		strings.Join(said, ", "),
		agentConfig.Name,
		k.line(namespace, "edit", kubectlName(agentConfig)),
		k.line(namespace, "rollout", "restart", kubectlName(deployment)),
	), nil
}

// known are the fields of spec.impersonationProxy in Pinniped v0.47.
var known = map[string][]string{
	"":        {"mode", "externalEndpoint", "service", "tls"},
	"service": {"type", "loadBalancerIP", "annotations"},
	"tls":     {"secretName", "certificateAuthorityData"},
}

// settingsOfAgent lists fields of the CredentialIssuer that Pinniped drops, and values that it does not support.
func (s *state) settingsOfAgent(kubectl) (*result.MigrationFinding, error) {
	spec := at(s.issuer, "spec")
	fields, _ := spec.(map[string]any)
	var said []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != "impersonationProxy" {
			said = append(said, "spec."+key)
		}
	}
	for _, parent := range slices.Sorted(maps.Keys(known)) {
		path, name := []string{"impersonationProxy"}, "spec.impersonationProxy."
		if parent != "" {
			path, name = append(path, parent), name+parent+"."
		}
		value := at(fields, path...)
		children, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(children)) {
			if !slices.Contains(known[parent], key) {
				said = append(said, name+key)
			}
		}
	}
	if secret := at(fields, "impersonationProxy", "tls", "secretName"); strings.Contains(fmt.Sprint(secret), "/") {
		said = append(said, "spec.impersonationProxy.tls.secretName in another namespace")
	}
	if len(said) == 0 {
		return nil, nil
	}
	return about(issuer, result.MigrationSettings, false,
		"Pinniped does not support these settings, and drops or ignores them: %s", strings.Join(said, ", ")), nil
}

// transitionPrepared finds a renewed certificate that the agent does not serve yet, because clients would refuse it.
// Pinniped would serve it at once. The agent has decided with internal/trust which clients would break.
func (s *state) transitionPrepared(kubectl) (*result.MigrationFinding, error) {
	for _, strategy := range s.strategies() {
		for _, finding := range strategy.Findings {
			if finding.Code == configv1alpha1.CodeTransitionPrepared {
				found := about(issuer, result.MigrationTransitionPrepared, true,
					"Pinniped would serve the renewed certificate in the Secret at once, and break the clients that the "+
						"agent waits for: %s", finding.Message)
				found.Commands = []string{"pinniped ip-tls history"}
				return found, nil
			}
		}
	}
	return nil, nil
}

// unknownStrategies finds strategies in the status that Pinniped's CRD does not permit. While there is one, the API
// server rejects every status update of Pinniped.
func (s *state) unknownStrategies(k kubectl) (*result.MigrationFinding, error) {
	var patch []operation
	var said []string
	for i, strategy := range slices.Backward(s.strategies()) {
		switch strategy.Type {
		case configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.StrategyImpersonationProxy:
			continue
		case configv1alpha1.StrategyServiceAccountToken:
		}
		at := fmt.Sprintf("/status/strategies/%d", i)
		patch = append(patch, operation{"test", at + "/type", strategy.Type}, operation{"remove", at, nil})
		said = append(said, string(strategy.Type))
	}
	if len(patch) == 0 {
		return nil, nil
	}
	line, err := k.patch(issuer, patch, "--subresource=status")
	if err != nil {
		return nil, err
	}
	finding := about(issuer, result.MigrationUnknownStrategy, true,
		"the status still has %s, which Pinniped's CRD does not permit, so Pinniped cannot write its own status",
		strings.Join(said, ", "))
	finding.Commands = []string{line}
	return finding, nil
}

// at returns the value at a path, or nil.
func at(fields map[string]any, path ...string) any {
	var value any = fields
	for _, key := range path {
		children, _ := value.(map[string]any)
		value = children[key]
	}
	return value
}

func same(a, b any) bool { return inline(a) == inline(b) }

func inline(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(encoded)
}
