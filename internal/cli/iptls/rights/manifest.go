package rights

import (
	"fmt"
	"slices"
	"strings"
)

// Manifest returns the ClusterRole and the Roles that permit the rules, called name, as YAML for "kubectl apply".
func Manifest(name string, rules []Rule) string {
	var namespaces []string // in the order in which they come up; the ClusterRole's is empty
	of := map[string][]Rule{}
	for _, rule := range rules {
		if !slices.Contains(namespaces, rule.Namespace) {
			namespaces = append(namespaces, rule.Namespace)
		}
		of[rule.Namespace] = merge(of[rule.Namespace], rule)
	}
	slices.Sort(namespaces) // the ClusterRole first
	documents := make([]string, 0, len(namespaces))
	for _, namespace := range namespaces {
		documents = append(documents, document(name, namespace, of[namespace]))
	}
	return strings.Join(documents, "---\n")
}

// merge adds a rule; one about the same objects takes its verbs, or one with the same verbs its objects.
func merge(rules []Rule, rule Rule) []Rule {
	for i, one := range rules {
		if one.Resource != rule.Resource || one.Why != rule.Why || one.Optional != rule.Optional {
			continue
		}
		if slices.Equal(one.Verbs, rule.Verbs) && len(one.Names) > 0 && len(rule.Names) > 0 {
			for _, name := range rule.Names {
				if !slices.Contains(one.Names, name) {
					rules[i].Names = append(slices.Clone(rules[i].Names), name)
				}
			}
			return rules
		}
		if slices.Equal(one.Names, rule.Names) && slices.Equal(one.Verbs, rule.Verbs) {
			return rules
		}
	}
	return append(rules, rule)
}

func document(name, namespace string, rules []Rule) string {
	kind, where, option := "ClusterRole", "", ""
	if namespace != "" {
		kind, where, option = "Role", "  namespace: "+namespace+"\n", " --namespace="+namespace
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# kubectl create %sbinding %s%s --%s=%s --user=NAME\n", strings.ToLower(kind), name, option,
		strings.ToLower(kind), name)
	fmt.Fprintf(&text, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: %s\n%srules:\n", kind, name,
		where)
	for _, rule := range rules {
		why := rule.Why
		if rule.Optional {
			why += "; the command works without it"
		}
		fmt.Fprintf(&text, "# %s\n- apiGroups: [%q]\n  resources: [%s]\n", why, rule.Resource.Group, rule.Resource.Resource)
		if len(rule.Names) > 0 {
			fmt.Fprintf(&text, "  resourceNames: [%s]\n", strings.Join(rule.Names, ", "))
		}
		fmt.Fprintf(&text, "  verbs: [%s]\n", strings.Join(rule.Verbs, ", "))
	}
	return text.String()
}
