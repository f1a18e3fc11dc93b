package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/advertised"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/kubeconfig/fleet"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// FleetOptions are the flags with which `pinniped kubeconfig rotate` does more than one cluster.
type FleetOptions struct {
	Fleet  bool
	Admins []string // files and folders
	From   []string // KIND or KIND:WHERE
	Into   string   // file:FOLDER

	Namespaces []string
	Selector   string
	Contexts   []string

	Concurrency    int
	ClusterTimeout time.Duration
	Retries        int
	MaxFailures    int
	ExpectedCAs    []string
	AllowOlder     bool
	Journal        string
	Undo           string
	JUnit          string
}

// kindContexts is the kind of --from for a part of one file.
const (
	kindFiles    = "file"
	kindContexts = "contexts"
)

func (o *FleetOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(
		&o.Fleet,
		"fleet",
		false,
		"rotate what leads to any cluster: each is asked at its own endpoint, verified by the CA bundle that the kubeconfig has",
	)
	flags.StringArrayVar(&o.Admins, "admin-kubeconfig", nil,
		"administrator's kubeconfig, or a folder of them, with which clusters are asked instead (repeatable)")
	flags.StringArrayVar(
		&o.From,
		"from",
		nil,
		"where more kubeconfigs are: file:PATH, contexts:FILE, or Secrets of a management cluster: capi, argocd, flux (repeatable)",
	)
	flags.StringVar(
		&o.Into,
		"into",
		"",
		"leave these kubeconfigs alone, and write into file:FOLDER, contexts:FILE, or the CA bundles into Secrets: capi, argocd or flux",
	)
	flags.StringSliceVarP(&o.Namespaces, "namespace", "n", nil,
		"namespaces of the management cluster with such Secrets (default: all)")
	flags.StringVarP(&o.Selector, "selector", "l", "", "label selector for such Secrets")
	flags.StringSliceVar(&o.Contexts, "contexts", nil,
		`only what contexts with these names use, such as "prod-*" (default: everything)`)
	flags.IntVar(&o.Concurrency, "concurrency", 64, "how many clusters are asked at a time")
	flags.DurationVar(
		&o.ClusterTimeout,
		"cluster-timeout",
		10*time.Second,
		"how long one cluster may take, all tries together",
	)
	flags.IntVar(&o.Retries, "retries", 3, "how often a cluster that gives no answer is asked again within that time")
	flags.IntVar(
		&o.MaxFailures,
		"max-failures",
		0,
		"stop when more clusters and kubeconfigs than this have failed (0: never); while clusters are asked, nothing is changed yet",
	)
	flags.StringSliceVar(&o.ExpectedCAs, "expect-ca", nil,
		`SHA-256 fingerprints: take only CA bundles without any other certificate ("none": take none)`)
	flags.BoolVar(&o.AllowOlder, "allow-older", false,
		"take also a CA bundle whose newest certificate is older than that of the kubeconfig")
	flags.StringVar(&o.Journal, "journal", "",
		"file to note every change in: the same command goes on after an interruption, and --undo takes the changes back")
	flags.StringVar(&o.Undo, "undo", "", "journal whose changes are to be taken back")
	flags.StringVar(&o.JUnit, "junit", "", "file for a report in JUnit's format")
}

// asked says whether the flags ask for more than one cluster.
func (o *FleetOptions) asked() bool {
	return o.Fleet || len(o.Admins) > 0 || len(o.From) > 0 || o.Undo != "" || o.Journal != ""
}

// validateFleet checks the flags before anything is contacted.
func (o *RotateOptions) validateFleet() error {
	f := &o.FleetOptions
	for flag, given := range map[string]bool{
		"--endpoint": o.Endpoint != "", "--ca-bundle": o.CABundle != "", "--skip-validation": o.SkipValidation,
	} {
		if given {
			return ui.Usage(fmt.Errorf("%s is for one cluster, and cannot be used together with the flags for a fleet", flag))
		}
	}
	switch {
	case f.Concurrency < 1 || f.Concurrency > 1000:
		return ui.Usage(fmt.Errorf("invalid --concurrency %d: it must be within 1 and 1000", f.Concurrency))
	case f.ClusterTimeout <= 0:
		return ui.Usage(fmt.Errorf("invalid --cluster-timeout %s: it must be more than nothing", f.ClusterTimeout))
	case f.Retries < 0 || f.MaxFailures < 0:
		return ui.Usage(errors.New("--retries and --max-failures cannot be negative"))
	case f.Undo != "" && (len(o.Paths) > 0 || f.Journal != "" || f.Into != ""):
		return ui.Usage(
			errors.New("--undo takes back what its journal says; no files, --journal or --into can be given beside it"),
		)
	case f.Journal != "" && (o.DryRun || strings.Contains(f.Into, ":")):
		return ui.Usage(errors.New("--journal is for changes; with --dry-run or --into FILES there are none"))
	}
	for _, pattern := range f.Contexts {
		if _, err := path.Match(pattern, ""); err != nil {
			return ui.Usage(fmt.Errorf("invalid --contexts %q: %w", pattern, err))
		}
	}
	if f.Into != "" && !isPlace(f.Into) {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid --into %q", f.Into)),
			"use file:FOLDER, contexts:FILE, capi, argocd or flux; -n and -l choose Secrets")
	}
	for _, from := range f.From {
		if !isPlace(from) {
			return ui.WithHint(ui.Usage(fmt.Errorf("invalid --from %q", from)),
				"use file:PATH, contexts:FILE, capi, argocd or flux; -n and -l choose Secrets, --contexts contexts")
		}
	}
	return nil
}

// isPlace says whether the value of --from or --into names a place: a kind of Secrets, or a kind of files and a path.
func isPlace(value string) bool {
	kind, where, _ := strings.Cut(value, ":")
	if _, secrets := fleet.FormatOf(kind); secrets {
		return where == ""
	}
	return (kind == kindFiles || kind == kindContexts) && where != ""
}

// runFleet rotates kubeconfigs of many clusters, or takes that back.
func (o *RotateOptions) runFleet(ctx context.Context) error {
	o.progress = o.Progress()
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	options := fleet.Options{
		Contexts: o.Contexts, CredentialIssuer: o.CredentialIssuer, Resolve: o.Resolve,
		Concurrency: o.Concurrency, ClusterTimeout: o.ClusterTimeout, Retries: o.Retries, MaxFailures: o.MaxFailures,
		ExpectedCAs: o.ExpectedCAs, AllowOlder: o.AllowOlder, DryRun: o.DryRun, Progress: o.progress, Now: time.Now,
	}
	var err error
	if journal := o.Journal + o.Undo; journal != "" {
		if options.Journal, err = fleet.OpenJournal(journal, o.Undo == "", time.Now); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = ui.WithHint(ui.Usage(err), "name the file that was given to --journal")
			}
			return err
		}
	}
	var done *fleet.Result
	if o.Undo != "" {
		done, err = fleet.Undo(ctx, options, o.place)
	} else {
		done, err = o.rotateFleet(ctx, options)
	}
	if closing := options.Journal.Close(); err == nil {
		err = closing
	}
	if done == nil {
		return err
	}
	return o.reportFleet(done, err)
}

func (o *RotateOptions) rotateFleet(ctx context.Context, options fleet.Options) (*fleet.Result, error) {
	var err error
	if options.Places, err = o.places(); err != nil {
		return nil, err
	}
	if options.Admins, err = o.admins(ctx); err != nil {
		return nil, err
	}
	switch kind, path, _ := strings.Cut(o.Into, ":"); kind {
	case "":
	case kindFiles:
		options.Into = fleet.IntoFolder{Path: path}
	case kindContexts:
		options.Into = &fleet.IntoContexts{Path: path}
	default:
		if options.IntoPlace, err = o.place(kind); err != nil {
			return nil, err
		}
	}
	return fleet.Run(ctx, options)
}

// places returns where kubeconfigs are.
func (o *RotateOptions) places() ([]fleet.Place, error) {
	var places []fleet.Place
	paths := slices.Clone(o.Paths)
	for _, from := range o.From {
		kind, where, _ := strings.Cut(from, ":")
		if kind == kindFiles || kind == kindContexts {
			paths = append(paths, where)
			continue
		}
		place, err := o.place(kind)
		if err != nil {
			return nil, err
		}
		places = append(places, place)
	}
	if len(paths) > 0 {
		places = slices.Insert(places, 0, o.files(paths))
	}
	return places, nil
}

func (o *RotateOptions) files(paths []string) fleet.Place {
	return &fleet.Files{Paths: paths, Contexts: o.Contexts, LockTimeout: o.LockTimeout, Hidden: o.hidden}
}

// place returns where kubeconfigs of a kind are. The journal and --from name kinds.
func (o *RotateOptions) place(kind string) (fleet.Place, error) {
	if kind == kindFiles {
		return o.files(nil), nil
	}
	format, ok := fleet.FormatOf(kind)
	if !ok {
		return nil, fmt.Errorf("there is no kind %q of places with kubeconfigs", kind)
	}
	config, err := o.Manage(o.Cluster)
	if err != nil {
		return nil, err
	}
	return fleet.NewSecrets(config, format, o.Namespaces, o.Selector)
}

// admins returns the clusters for which there is an administrator's kubeconfig: one for each context.
func (o *RotateOptions) admins(ctx context.Context) ([]fleet.Admin, error) {
	files, err := kubeconfig.Find(ctx, o.Admins)
	if err != nil {
		return nil, err
	}
	var admins []fleet.Admin
	for _, file := range o.withoutHidden(files) {
		err := file.Err
		if err == nil {
			var found []fleet.Admin
			found, err = o.adminsIn(file.Path)
			admins = append(admins, found...)
		}
		if err != nil && (file.Named || !errors.Is(err, kubeconfig.ErrNotKubeconfig)) {
			return nil, fmt.Errorf("reading administrators' kubeconfigs: %w", err)
		}
	}
	return admins, nil
}

func (o *RotateOptions) adminsIn(file string) ([]fleet.Admin, error) {
	config, err := kubeconfig.Load(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	var admins []fleet.Admin
	for _, name := range names {
		flags := factory.ClusterFlags{Kubeconfig: filepath.Clean(file), Context: name}
		admins = append(admins, fleet.Admin{
			Name:    fmt.Sprintf("%s (context %q)", file, name),
			Connect: func() (advertised.Discoverer, error) { return o.Connect(flags, o.Suffix) },
		})
	}
	return admins, nil
}

// reportFleet prints the result and says what the numbers are. It returns err, or an error if something has failed.
func (o *RotateOptions) reportFleet(done *fleet.Result, err error) error {
	shown := fleetResult(done)
	o.progress.Info("%s", sum(shown))
	var tooMany *fleet.TooManyError
	switch failed, without := shown.Summary.Failed, withoutTrust(done); {
	case errors.As(err, &tooMany):
		err = ui.WithHint(err, "the result names the reasons; the same command goes on with what is left")
	case err != nil && o.Journal != "":
		err = ui.WithHint(err, "the same command, with the same --journal, goes on with what is left")
	case err != nil:
		err = ui.WithHint(err, "the same command goes on with what is left: what is done already stays")
	case failed > 0:
		err = ui.WithHint(fmt.Errorf("%d of %d kubeconfigs could not be rotated", failed, len(done.Items)),
			"the result names the reasons; the others are done, and running the command again does no harm")
	case without > 0:
		err = ui.WithHint(
			fmt.Errorf("%d of %d kubeconfigs did not get what their clusters advertise", without, len(done.Items)),
			"the result names the reasons; --admin-kubeconfig helps where a cluster hands nothing on")
	case shown.Summary.ClustersFailed > 0:
		err = fmt.Errorf("%d of %d clusters could not be asked", shown.Summary.ClustersFailed, len(done.Clusters))
	}
	if o.JUnit != "" {
		if writing := writeJUnit(o.JUnit, shown); writing != nil {
			err = errors.Join(err, writing)
		}
	}
	if o.Output == formatJUnit {
		return result.Print(o.Out, "text", shown, err, func() ([]byte, error) { return fleetJUnit(shown) })
	}
	return result.Print(o.Out, o.Output, shown, err, func() ([]byte, error) { return fleetText(shown) })
}

// Management returns how to reach the management cluster: by the kubeconfig, or in a pod by its service account.
type Management func(factory.ClusterFlags) (*rest.Config, error)

// managementCluster returns how to reach the cluster that has kubeconfigs in Secrets.
func managementCluster(f *factory.Factory, flags factory.ClusterFlags) (*rest.Config, error) {
	if flags.Kubeconfig == "" && f.Getenv("KUBECONFIG") == "" && f.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reaching the management cluster by this pod's service account: %w", err)
		}
		return config, nil
	}
	cluster, err := f.Cluster(flags)
	if err != nil {
		return nil, err
	}
	return cluster.REST, nil
}

// forFleet returns a flag that was given and says something about fleets only; empty for none.
func (o *FleetOptions) forFleet(output string) string {
	switch {
	case o.Into != "":
		return "--into"
	case len(o.Namespaces) > 0:
		return "--namespace"
	case o.Selector != "":
		return "--selector"
	case len(o.Contexts) > 0:
		return "--contexts"
	case o.MaxFailures > 0:
		return "--max-failures"
	case o.AllowOlder:
		return "--allow-older"
	case o.JUnit != "":
		return "--junit"
	case output == formatJUnit:
		return "-o " + formatJUnit
	}
	return ""
}
