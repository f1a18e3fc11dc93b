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
			lines = append(lines, "- "+name+": "+had.shown()+"\n")
		}
		if willBe {
			lines = append(lines, "+ "+name+": "+has.shown()+"\n")
		}
	}
	return lines
}

// setting is a value of a kubeconfig: value for comparison, and written as in the file, if different.
type setting struct {
	value, written string
	kind           settingKind
}

// newBundle returns the setting of a CA bundle. Bundles are compared by their certificates.
func newBundle(encoded string) setting {
	made := setting{value: encoded, written: encoded, kind: bundleSetting}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if members, findings := certs.ParseBundle(text); err == nil && len(findings) == 0 {
		var prints []string
		for _, member := range members {
			prints = append(prints, certs.Fingerprint(member.Raw))
		}
		slices.Sort(prints)
		made.value = strings.Join(slices.Compact(prints), " ")
	}
	return made
}

type settingKind int

const (
	plainSetting settingKind = iota
	secretSetting
	bundleSetting // base64 of PEM
)

func (s setting) shown() string {
	switch s.kind {
	case secretSetting:
		return "(a secret)"
	case bundleSetting:
		return describeBundle(s.written)
	case plainSetting:
	}
	return s.value
}

func describeBundle(encoded string) string {
	if encoded == "" {
		return "none: the system roots"
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "(damaged)"
	}
	members, _ := certs.ParseBundle(text)
	if len(members) == 0 {
		return "(no certificate)"
	}
	var all []string
	for _, member := range members {
		all = append(all, fmt.Sprintf("%q until %s (SHA-256 %s)",
			member.Subject, member.NotAfter.UTC().Format("2006-01-02"), certs.Fingerprint(member.Raw)))
	}
	return strings.Join(all, ", ")
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
		found["current-context"] = setting{value: current}
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
			one := setting{value: fmt.Sprint(value)}
			switch {
			case slices.Contains(secretFields, name):
				one.kind = secretSetting
			case name == "certificate-authority-data":
				one = newBundle(one.value)
			}
			into[path] = one
		}
	}
}

// flattenList adds a plugin's flags one by one, and other lists as a whole.
func flattenList(into map[string]setting, path, name string, list []any) {
	if name != "args" {
		for _, item := range list {
			if fields, ok := item.(map[string]any); ok && name == "env" {
				into[fmt.Sprintf("%s %v", path, fields["name"])] = setting{value: fmt.Sprint(fields["value"]), kind: secretSetting}
			} else {
				into[path] = setting{value: fmt.Sprint(list)}
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
			into[path+" "+tokenFlag] = setting{value: argument, kind: secretSetting}
		case !strings.HasPrefix(flag, "--"):
			words = append(words, argument)
		case flag == tokenFlag:
			into[path+" "+flag] = setting{value: value, kind: secretSetting}
		case flag == bundleFlag, flag == "--ca-bundle-data":
			into[path+" "+flag] = newBundle(value)
		default:
			into[path+" "+flag] = setting{value: value}
		}
	}
	into[path] = setting{value: strings.Join(words, " ")}
}

const tokenFlag = "--token"
