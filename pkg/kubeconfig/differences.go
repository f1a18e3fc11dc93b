package kubeconfig

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Differences returns the semantic differences of two kubeconfigs, sorted: a line for each setting that only old has
// ("- …") or only now has ("+ …"). It ignores the order of entries and of a plugin's flags. It describes CA bundles by
// their certificates, and never shows secrets.
func Differences(old, now *clientcmdapi.Config) []string {
	before, after := settings(old), settings(now)
	all := maps.Clone(before)
	maps.Copy(all, after)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		had, isThere := before[name]
		has, willBe := after[name]
		if had.value == has.value && isThere == willBe {
			continue
		}
		if isThere {
			lines = append(lines, "- "+name+": "+had.shown+"\n")
		}
		if willBe {
			lines = append(lines, "+ "+name+": "+has.shown+"\n")
		}
	}
	return lines
}

// setting is a value of a kubeconfig, for comparison, and how to show it.
type setting struct{ value, shown string }

func plain(value string) setting  { return setting{value, value} }
func secret(value string) setting { return setting{value, "(a secret)"} }

// bundleSetting returns the setting of a CA bundle, base64 of PEM. Bundles are compared by their certificates.
func bundleSetting(encoded string) setting {
	text, err := base64.StdEncoding.DecodeString(encoded)
	members, findings := certs.ParseBundle(text)
	var prints, all []string
	for _, member := range members {
		prints = append(prints, certs.Fingerprint(member.Raw))
		all = append(all, fmt.Sprintf("%q until %s (SHA-256 %s)",
			member.Subject, member.NotAfter.UTC().Format("2006-01-02"), certs.Fingerprint(member.Raw)))
	}
	made := setting{value: encoded, shown: strings.Join(all, ", ")}
	switch {
	case encoded == "":
		made.shown = "none: the system roots"
	case err != nil:
		made.shown = "(damaged)"
	case len(members) == 0:
		made.shown = "(no certificate)"
	}
	if err == nil && len(findings) == 0 {
		slices.Sort(prints)
		made.value = strings.Join(slices.Compact(prints), " ")
	}
	return made
}

// settings returns all settings of a kubeconfig by name, such as "cluster \"dev\" server".
func settings(config *clientcmdapi.Config) map[string]setting {
	found := map[string]setting{}
	var text []byte
	reloaded, err := WithDefaults(config)
	if err == nil {
		text, err = clientcmd.Write(*reloaded)
	}
	var fields map[string]any
	if err != nil || yaml.Unmarshal(text, &fields) != nil {
		return found // impossible: it was parsed or built
	}
	if current, _ := fields["current-context"].(string); current != "" {
		found["current-context"] = plain(current)
	}
	for _, kind := range []string{kindCluster, kindContext, kindUser} {
		items, _ := fields[kind+"s"].([]any)
		for _, item := range items {
			entry, _ := item.(map[string]any)
			name, _ := entry["name"].(string)
			body, _ := entry[kind].(map[string]any)
			flatten(found, fmt.Sprintf("%s %q", kind, name), body)
		}
	}
	return found
}

// secretFields are the fields of a user that are never shown.
var secretFields = []string{"token", "password", "client-key-data", "client-certificate-data"}

func flatten(into map[string]setting, prefix string, fields map[string]any) {
	for name, value := range fields {
		path := prefix + " " + name
		switch value := value.(type) {
		case nil:
		case map[string]any:
			flatten(into, path, value)
		case []any:
			flattenList(into, path, name, value)
		default:
			into[path] = plain(fmt.Sprint(value))
			switch {
			case slices.Contains(secretFields, name):
				into[path] = secret(fmt.Sprint(value))
			case name == "certificate-authority-data":
				into[path] = bundleSetting(fmt.Sprint(value))
			}
		}
	}
}

// flattenList adds a plugin's flags one by one, and other lists as a whole.
func flattenList(into map[string]setting, path, name string, list []any) {
	if name != "args" {
		for _, item := range list {
			if fields, ok := item.(map[string]any); ok && name == "env" {
				into[fmt.Sprintf("%s %v", path, fields["name"])] = secret(fmt.Sprint(fields["value"]))
			} else {
				into[path] = plain(fmt.Sprint(list))
			}
		}
		return
	}
	var words []string
	for i, item := range list {
		argument, _ := item.(string)
		flag, value, _ := strings.Cut(argument, "=")
		switch {
		case i > 0 && list[i-1] == tokenFlag:
			into[path+" "+tokenFlag] = secret(argument)
		case !strings.HasPrefix(flag, "--"):
			words = append(words, argument)
		case flag == tokenFlag:
			into[path+" "+flag] = secret(value)
		case flag == bundleFlag, flag == "--ca-bundle-data":
			into[path+" "+flag] = bundleSetting(value)
		default:
			into[path+" "+flag] = plain(value)
		}
	}
	into[path] = plain(strings.Join(words, " "))
}

const tokenFlag = "--token"
