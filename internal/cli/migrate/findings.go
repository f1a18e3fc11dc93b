package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// decide returns what is installed and what blocks the next step.
func decide(s *state, back bool, k kubectl) (*result.Migration, error) {
	m := &result.Migration{Back: back, Stage: s.stage(), Namespace: namespace, Findings: []result.MigrationFinding{}}
	if s.deployment == nil {
		m.Namespace = s.apiNamespace
	} else {
		m.Image = s.deployment.container().Image
	}
	checks := map[bool]map[result.MigrationStage][]check{
		false: {
			result.StageNone: {s.elsewhere},
			result.StagePinniped: {
				s.elsewhere, s.appliedByOthers, s.ownedByDeployment, s.fieldsOwned, s.managedByKapp, s.loginsAtAPIServer,
				s.settingsOfPinniped, s.refusedByAgent,
			},
			result.StageRollingOut: {s.ownedByDeployment, s.fieldsOwned, s.managedByKapp, s.rollingOut},
			result.StageAgent: {
				s.ownedByDeployment, s.fieldsOwned, s.managedByKapp, s.settingsLeftBehind, s.leftOfPinniped, s.privileged,
			},
		},
		true: {
			result.StagePinniped:   {s.unknownStrategies, s.leftOfAgent},
			result.StageAgent:      {s.transitionPrepared, s.brokenByPinniped, s.settingsOfAgent},
			result.StageRollingOut: {s.transitionPrepared, s.brokenByPinniped, s.settingsOfAgent},
		},
	}
	for _, check := range checks[back][m.Stage] {
		finding, err := check(k)
		if err != nil {
			return nil, err
		}
		if finding != nil {
			m.Findings = append(m.Findings, *finding)
			m.InTheWay = m.InTheWay || finding.InTheWay
		}
	}
	if !m.InTheWay {
		m.Next = next(m)
	}
	return m, nil
}

// check looks for one kind of finding, and returns nil if there is none.
type check func(k kubectl) (*result.MigrationFinding, error)

// next returns the next step if nothing blocks it.
func next(m *result.Migration) string {
	left := len(m.Findings) > 0
	switch {
	case m.Stage == result.StageNone:
		return "install the agent: make install"
	case m.Back && m.Stage == result.StagePinniped && left:
		return "once Pinniped serves, remove the rest of the agent with the commands above"
	case m.Back && m.Stage == result.StagePinniped:
		return "nothing: Pinniped is installed, and the agent is removed"
	case m.Back:
		return "install Pinniped: kubectl apply --server-side -f install-pinniped-concierge.yaml"
	case m.Stage == result.StagePinniped:
		return "install the agent: make install"
	case left:
		return "remove the rest of Pinniped with the commands above"
	}
	return "nothing: the agent serves, and Pinniped is removed"
}

// agentProgram and pinnipedProgram are the program names in the container's command.
const (
	agentProgram    = "pinniped-agent"
	pinnipedProgram = "pinniped-concierge"
)

func (d *rollout) container() container {
	for _, c := range d.Spec.Template.Spec.Containers {
		if program := c.program(); program == agentProgram || program == pinnipedProgram {
			return c
		}
	}
	return container{}
}

func (c container) program() string {
	if len(c.Command) == 0 {
		return ""
	}
	return path.Base(c.Command[0])
}

func (s *state) stage() result.MigrationStage {
	if s.deployment == nil {
		return result.StageNone
	}
	switch s.deployment.container().program() {
	case pinnipedProgram:
		return result.StagePinniped
	case agentProgram:
		if s.deployment.rolledOut() {
			return result.StageAgent
		}
		return result.StageRollingOut
	}
	return result.StageNone
}

// rolledOut reports whether all pods are up to date and ready.
func (d *rollout) rolledOut() bool {
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	return d.Status.ObservedGeneration >= d.Metadata.Generation && d.Status.Replicas == wanted &&
		d.Status.UpdatedReplicas == wanted && d.Status.AvailableReplicas == wanted
}

func (s *state) elsewhere(kubectl) (*result.MigrationFinding, error) {
	switch {
	case s.apiNamespace != "" && s.apiNamespace != namespace:
		return &result.MigrationFinding{Reason: result.MigrationElsewhere, InTheWay: true, Message: fmt.Sprintf(
			"the Concierge APIs are served from namespace %q, but the agent's manifests use namespace %q, so both would "+
				"claim the same APIs. Install the agent from an overlay that uses Pinniped's namespace and names, or "+
				"reinstall Pinniped under its usual names", s.apiNamespace, namespace)}, nil
	case s.apiNamespace == "" || s.stage() != result.StageNone:
		return nil, nil
	}
	return about(deployment, result.MigrationElsewhere, true,
		"the Concierge APIs are served from namespace %q, where Deployment %q is neither Pinniped's nor the agent's. "+
			"Pinniped may have been installed under another name, and the agent's manifests do not replace that installation",
		namespace, app), nil
}

func (s *state) ownedByDeployment(k kubectl) (*result.MigrationFinding, error) {
	finding := &result.MigrationFinding{
		Reason: result.MigrationOwnedByDeployment,
		Message: "a Deployment owns these objects. If it were deleted, they would be deleted too, and with them the CAs " +
			"that every kubeconfig trusts, and the load balancer's address. The agent removes the owner reference when it " +
			"starts; the commands remove it before that",
	}
	for _, object := range s.owned {
		if !slices.ContainsFunc(object.OwnerReferences, ofDeployment) {
			continue
		}
		line, err := k.patch(object.Ref, release(object))
		if err != nil {
			return nil, err
		}
		finding.Objects = append(finding.Objects, describe(object.Ref))
		finding.Commands = append(finding.Commands, line)
	}
	return orNone(finding), nil
}

// about returns a finding about one object.
func about(
	object discovery.Ref,
	reason result.MigrationReason,
	inTheWay bool,
	format string,
	args ...any,
) *result.MigrationFinding {
	return &result.MigrationFinding{
		Reason: reason, InTheWay: inTheWay, Objects: []string{describe(object)}, Message: fmt.Sprintf(format, args...),
	}
}

// orNone returns nil for a finding without objects.
func orNone(finding *result.MigrationFinding) *result.MigrationFinding {
	if len(finding.Objects) == 0 {
		return nil
	}
	return finding
}

// toApply returns the existing objects that deploy/upgrade applies.
func (s *state) toApply() []found {
	var objects []found
	for _, ref := range applied() {
		for _, object := range s.shared {
			if object.Ref == ref {
				objects = append(objects, object)
			}
		}
	}
	return objects
}

func (s *state) fieldsOwned(k kubectl) (*result.MigrationFinding, error) {
	finding := &result.MigrationFinding{Reason: result.MigrationFieldsOwned, InTheWay: s.stage() == result.StagePinniped}
	var managers []string
	for _, object := range s.toApply() {
		names := managersOf(object, byInstaller)
		// Once the agent serves, later edits by people are not Pinniped's.
		if s.stage() != result.StagePinniped && !slices.Contains(names, "kapp") &&
			!slices.Contains(names, "kubectl-client-side-apply") {
			continue
		}
		if len(names) == 0 {
			continue
		}
		patch, err := mergeManagers(object)
		if err != nil {
			return nil, fmt.Errorf("reading the field managers of %s: %w", describe(object.Ref), err)
		}
		line, err := k.patch(object.Ref, patch)
		if err != nil {
			return nil, err
		}
		managers = append(managers, names...)
		finding.Objects = append(finding.Objects, describe(object.Ref))
		finding.Commands = append(finding.Commands, line)
	}
	slices.Sort(managers)
	finding.Message = fmt.Sprintf(
		"fields of these objects are owned by %s, so \"kubectl apply --server-side\" would end in a conflict or leave "+
			"settings of Pinniped behind. The commands change only the owner of the fields",
		strings.Join(slices.Compact(managers), ", "),
	)
	return orNone(finding), nil
}

func (s *state) appliedByOthers(kubectl) (*result.MigrationFinding, error) {
	finding := &result.MigrationFinding{Reason: result.MigrationAppliedByOthers, InTheWay: true}
	var managers []string
	for _, object := range s.toApply() {
		if names := managersOf(object, byOthers); len(names) > 0 {
			managers = append(managers, names...)
			finding.Objects = append(finding.Objects, describe(object.Ref))
		}
	}
	slices.Sort(managers)
	finding.Message = fmt.Sprintf(
		"these objects were applied by %s, which would restore Pinniped. Change that tool to apply the agent's manifests "+
			"instead, or stop the tool first and remove its entries from metadata.managedFields",
		strings.Join(slices.Compact(managers), ", "),
	)
	return orNone(finding), nil
}

// kappPrefix is the prefix of kapp's labels and annotations.
const kappPrefix = "kapp.k14s.io/"

// kappApp is the label by which kapp finds the objects of an app.
const kappApp = kappPrefix + "app"

func (s *state) managedByKapp(k kubectl) (*result.MigrationFinding, error) {
	finding := &result.MigrationFinding{
		Reason:   result.MigrationManagedByKapp,
		InTheWay: true,
		Message: "kapp owns these objects, so \"kapp delete\" would remove them and the agent. The commands remove " +
			"kapp's labels, except from objects that only Pinniped needs",
	}
	var objects []found
	var labels, annotations []string
	for _, object := range append(slices.Clone(s.shared), s.authenticators...) {
		if _, managed := object.Labels[kappApp]; !managed {
			continue
		}
		objects = append(objects, object)
		finding.Objects = append(finding.Objects, describe(object.Ref))
		labels = append(labels, kappKeys(object.Labels)...)
		annotations = append(annotations, kappKeys(object.Annotations)...)
	}
	for verb, keys := range map[string]*[]string{"label": &labels, "annotate": &annotations} {
		slices.Sort(*keys)
		*keys = slices.Compact(*keys)
		if len(*keys) == 0 {
			continue
		}
		finding.Commands = append(finding.Commands, k.each(objects, func(names []string) []string {
			words := append([]string{verb}, names...)
			for _, key := range *keys {
				words = append(words, key+"-")
			}
			return words
		})...)
	}
	slices.Sort(finding.Commands)
	return orNone(finding), nil
}

// kappKeys returns the labels or annotations by which kapp identifies an object. It leaves out kapp's rules, which
// claim nothing.
func kappKeys(of map[string]string) []string {
	var keys []string
	for key := range of {
		switch strings.TrimPrefix(key, kappPrefix) {
		case "app", "association", "identity", "original", "original-diff-md5":
			if strings.HasPrefix(key, kappPrefix) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

func (s *state) rollingOut(k kubectl) (*result.MigrationFinding, error) {
	return about(deployment, result.MigrationRollingOut, true,
		"not all of the agent's pods serve yet, and pods of Pinniped may still need these objects. Wait, or "+
			"find out why the pods do not serve. To go back at once, run: %s",
		k.line(namespace, "rollout", "undo", kubectlName(deployment))), nil
}

func (s *state) leftOfPinniped(k kubectl) (*result.MigrationFinding, error) {
	return orNone(&result.MigrationFinding{
		Reason: result.MigrationLeftOver,
		Message: "only Pinniped needs these objects. To go back later, apply Pinniped's manifests, which recreate them; " +
			"\"kubectl rollout undo\" does not recreate them",
		Objects:  names(s.pinnipeds),
		Commands: k.remove(s.pinnipeds),
	}), nil
}

// enforce is the Pod Security label of a namespace.
const enforce = "pod-security.kubernetes.io/enforce"

func (s *state) privileged(k kubectl) (*result.MigrationFinding, error) {
	at := slices.IndexFunc(s.shared, func(object found) bool { return object.Resource == core("namespaces") })
	if at < 0 || s.shared[at].Labels[enforce] == "restricted" {
		return nil, nil
	}
	line, err := k.restrict(s.shared[at])
	if err != nil {
		return nil, err
	}
	finding := about(s.shared[at].Ref, result.MigrationPrivileged, false,
		"the namespace permits more than the agent needs (%s: %q), because Pinniped's kube-cert-agent needed "+
			"this level",
		enforce, s.shared[at].Labels[enforce])
	finding.Commands = []string{line}
	return finding, nil
}

// restrict returns the command that sets the restricted Pod Security level on a namespace. It applies all labels
// server-side instead of using `kubectl label`, so that Pinniped's manifests can be applied later without a conflict.
func (k kubectl) restrict(namespace found) (string, error) {
	labels := map[string]string{}
	maps.Copy(labels, namespace.Labels)
	delete(labels, "kubernetes.io/metadata.name") // set by the API server
	labels[enforce] = "restricted"
	encoded, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace.Ref.Name, "labels": labels},
	})
	if err != nil {
		return "", fmt.Errorf("encoding the namespace: %w", err)
	}
	return "printf %s " + ui.ShellWord(string(encoded)) + " | " +
		k.line("", "apply", "--server-side", "--force-conflicts", "--filename=-"), nil
}

func (s *state) leftOfAgent(k kubectl) (*result.MigrationFinding, error) {
	return orNone(&result.MigrationFinding{
		Reason: result.MigrationLeftOver, Message: "only the agent needs these objects", Objects: names(s.agents),
		Commands: k.remove(s.agents),
	}), nil
}

func names(objects []found) []string {
	var all []string
	for _, object := range objects {
		all = append(all, describe(object.Ref))
	}
	return all
}
