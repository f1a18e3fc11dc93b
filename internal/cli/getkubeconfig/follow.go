package getkubeconfig

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func (o *Options) addFollowFlag(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.Follow,
		"follow",
		"",
		"at login, write the proxy's new CA bundle to the kubeconfig that kubectl uses without --kubeconfig, or to the "+
			"one at this absolute path",
	)
	flags.Lookup("follow").NoOptDefVal = kubeconfig.FollowUsual
}

func (o *Options) validateFollow() error {
	switch {
	case o.Follow == "":
	case o.NoConcierge, o.Login == LoginBearer:
		return errors.New("--follow applies only to kubeconfigs that log in through the impersonation proxy")
	case o.Follow != kubeconfig.FollowUsual && !filepath.IsAbs(o.Follow):
		return fmt.Errorf("invalid --follow=%s: it must be the absolute path that the kubeconfig will have", o.Follow)
	}
	return nil
}

// follow returns the value of the credential plugin's --follow flag.
func (o *Options) follow() string {
	if o.Follow != "" && o.mode != configv1alpha1.FrontendImpersonationProxy {
		o.Progress.Warn(
			"the kubeconfig will not refresh its trust bundle, because only the impersonation proxy has a trust bundle endpoint",
		)
		return ""
	}
	return o.Follow
}
