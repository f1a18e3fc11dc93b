package login

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// updateVariable enables --update-kubeconfig for a single command.
const updateVariable = "PINNIPED_UPDATE_KUBECONFIG"

// updateTimeout is how long to wait for a kubeconfig that another program is changing.
const updateTimeout = 10 * time.Second

// checkIdentity compares the user that the cluster returned with the user that the kubeconfig impersonates. Only the
// kubeconfig can make kubectl send impersonation headers: exec credentials have no field for them. It reports whether
// the kubeconfig is up to date, and returns an error if the cluster would refuse kubectl.
func (p *Plugin) checkIdentity(ctx context.Context, headers map[string][]string) (current bool, err error) {
	if len(headers) == 0 {
		return true, nil
	}
	now, err := kubeconfig.ParseImpersonation(headers)
	if err != nil {
		return false, err
	}
	switch p.concierge.Identity {
	case now.Digest():
		return true, nil
	case "":
		return false, ui.WithHint(
			errors.New("the cluster issues service account tokens, but this kubeconfig names no user to impersonate"),
			"run the command as %q, or use a kubeconfig from \"pinniped get kubeconfig --concierge-mode "+
				"ServiceAccountToken\"",
			"pinniped run -- COMMAND",
		)
	}
	path, name, user := p.Find(p.Args)
	what, lost := "your groups differ from the kubeconfig's", true
	if before := kubeconfig.ImpersonationOf(user); before != nil {
		if text, refused := before.Changed(now); text != "" {
			what, lost = text, refused
		}
	}
	problem := errors.New("your kubeconfig is out of date: " + what)
	if user == nil {
		return false, ui.WithHint(
			problem,
			"get a new kubeconfig, or create one with \"pinniped get kubeconfig --concierge-mode ServiceAccountToken\"; or "+
				"use \"pinniped run\", which uses your current identity",
		)
	}
	if p.concierge.UpdateKubeconfig {
		if err := p.update(ctx, path, name, user, now); err != nil {
			return false, fmt.Errorf("updating kubeconfig %q, because %s: %w", path, what, err)
		}
		if lost {
			return false, ui.WithHint(errors.New(what), "kubeconfig %q is now up to date: run the command again", path)
		}
		p.say("%s; updated kubeconfig %q", what, path)
		return false, nil
	}
	way := fmt.Sprintf("run the command once with %s=true to update kubeconfig %s", updateVariable, ui.ShellWord(path))
	if lost {
		return false, ui.WithHint(problem, "%s", way)
	}
	p.say("%s: %s", what, way)
	return false, nil
}

func (p *Plugin) say(format string, args ...any) {
	ui.Println(p.ErrOut, "pinniped: "+format, args...)
}

// update makes the kubeconfig's user impersonate now. The rest of the file is unchanged.
func (p *Plugin) update(
	ctx context.Context,
	path, name string,
	user *clientcmdapi.AuthInfo,
	now *kubeconfig.Impersonation,
) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	changed := user.DeepCopy()
	now.SetOn(changed)
	for i, argument := range changed.Exec.Args {
		if strings.HasPrefix(argument, kubeconfig.IdentityArgument) {
			changed.Exec.Args[i] = kubeconfig.IdentityArgument + now.Digest()
		}
	}
	made := clientcmdapi.NewConfig()
	made.AuthInfos[name] = changed
	_, err := kubeconfig.MergeFile(ctx, path, made, false)
	return err
}

// usualFiles returns kubectl's default kubeconfigs.
func usualFiles(f *factory.Factory) []string {
	if paths := filepath.SplitList(f.Getenv("KUBECONFIG")); len(paths) > 0 {
		return paths
	}
	home, err := f.HomeDir()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(home, ".kube", "config")}
}

// findUser returns the kubeconfig with a login with these arguments, and its user, or nil if it is not found. A file
// that kubectl got with --kubeconfig is unknown here.
func findUser(f *factory.Factory, args []string) (path, name string, user *clientcmdapi.AuthInfo) {
	for _, path := range usualFiles(f) {
		config, err := kubeconfig.LoadAsWritten(path)
		if err != nil {
			continue
		}
		for name, user := range config.AuthInfos {
			if user != nil && user.Exec != nil && slices.Equal(user.Exec.Args, args) {
				return path, name, user
			}
		}
	}
	return "", "", nil
}
