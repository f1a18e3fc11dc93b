package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	outputText     = "text"
	outputJSON     = "json"
	outputMarkdown = "markdown"
)

// The ports of the agent that may be attacked.
const (
	portProxy = "proxy"
	portAPI   = "api"
)

// options say what is measured, and for how long.
type options struct {
	Preset    string
	Loads     []string
	Rounds    int
	Seconds   float64
	Workers   int
	Clients   int // connections
	Objects   int // ConfigMaps
	Listed    int // ConfigMaps of the loads that list
	Watches   int
	Watcher   int     // watchers of the delay of events
	Held      int     // watches held
	Idle      int     // connections
	Hostile   float64 // seconds of each attack
	Honest    float64 // size of the load honest
	Attacks   []string
	Attackers int    // connections of each attacker
	Port      string // that is attacked
	Patience  float64
	Output    string
	Save      string // a directory
	Agent     string
	Other     string // another build of the agent
	CLI       string
	Deploy    string
	Args      []string // for the agent
	Network   string
	Keep      string // a directory for the cluster, which is kept
	Timeout   time.Duration
}

// preset are the options that depend on how much time there is.
type preset struct {
	rounds  int
	seconds float64
	hostile float64
	honest  float64
	timeout time.Duration
}

func presets() map[string]preset {
	return map[string]preset{
		"quick": {rounds: 6, seconds: 0.5, hostile: 5, honest: 0.2, timeout: 20 * time.Minute},
		"full":  {rounds: 10, seconds: 3, hostile: 60, honest: 1, timeout: 90 * time.Minute},
	}
}

func parseOptions(args []string, errOut io.Writer) (*options, error) {
	o := &options{}
	var names, agentArgs, attackList string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&o.Preset, "preset", "quick", "quick (about 8 minutes) or full (about 45)")
	flags.StringVar(&names, "loads", "all", "loads to run, separated by commas: "+strings.Join(loadNames(), ","))
	flags.IntVar(&o.Rounds, "rounds", 0, "how often direct and proxied take turns (default: the preset's)")
	flags.Float64Var(&o.Seconds, "seconds", 0, "how long one turn takes (default: the preset's)")
	flags.IntVar(
		&o.Workers,
		"workers",
		16,
		"workers of the loads with many, each waiting for its answer before it asks again",
	)
	flags.IntVar(&o.Clients, "clients", 4, "HTTP/2 connections that the workers share")
	flags.IntVar(&o.Objects, "objects", 1000, "ConfigMaps of 1 kB")
	flags.IntVar(&o.Listed, "listed", 480, "ConfigMaps of almost 3 kB, which are listed")
	flags.IntVar(&o.Watches, "watches", 1000, "watches opened at once")
	flags.IntVar(&o.Held, "held", 10000, "watches held by one replica")
	flags.IntVar(&o.Watcher, "watchers", 300, "watchers of the delay of events, and of the memory of watches")
	flags.IntVar(&o.Idle, "idle", 1000, "idle TLS connections held")
	flags.Float64Var(
		&o.Hostile,
		"hostile",
		0,
		"seconds of each attack, and of the quiet before it (default: the preset's)",
	)
	flags.Float64Var(
		&o.Honest,
		"honest",
		0,
		"size of the load honest: clients, bytes and pauses, of which 1 are all (default: the preset's)",
	)
	flags.StringVar(
		&attackList,
		"attacks",
		"usual",
		"attacks of the load hostile, separated by commas, usual or all; usual: "+strings.Join(namesOf(usualAttacks()), ",")+
			"; more: "+strings.Join(namesOf(moreAttacks()), ","),
	)
	flags.IntVar(&o.Attackers, "attackers", 3, "connections of each attack")
	flags.StringVar(
		&o.Port,
		"port",
		portProxy,
		"which port of the agents is attacked: "+portProxy+", or "+portAPI+" for that of the Concierge APIs",
	)
	flags.Float64Var(
		&o.Patience,
		"patience",
		1,
		"how much of the time that a Deployment, as shipped, waits during a rollout the load survive waits: 1 is all",
	)
	flags.StringVar(&o.Output, "o", outputText, "text, json, or markdown: the tables of docs/performance.md")
	flags.StringVar(
		&o.Save,
		"save",
		"",
		"a directory in which the results are kept as JSON, for compare (default: nowhere)",
	)
	flags.StringVar(&o.Agent, "agent", "bin/pinniped-agent", "the agent's program")
	flags.StringVar(&o.Other, "other", "", "another build of the agent, measured in turn with direct and ours; "+
		floor+" is a reverse proxy of net/http and nothing else")
	flags.StringVar(&o.CLI, "cli", "bin/pinniped", "the CLI's program")
	flags.StringVar(&o.Deploy, "deploy", "deploy", "folder of the manifests")
	flags.StringVar(&agentArgs, "agent-args", "", "more arguments for the agent, separated by spaces")
	flags.StringVar(
		&o.Network,
		"network",
		networkAuto,
		"namespaces: client, proxy and API server in network namespaces, which needs root on Linux; loopback; or auto",
	)
	flags.StringVar(
		&o.Keep,
		"keep",
		"",
		"a new directory for the cluster's files and logs, which stay there (default: a temporary one)",
	)
	flags.DurationVar(&o.Timeout, "timeout", 0, "give up after this long (default: the preset's)")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	chosen, ok := presets()[o.Preset]
	if !ok {
		return nil, fmt.Errorf("-preset is %q: use quick or full", o.Preset)
	}
	if !slices.Contains([]string{outputText, outputJSON, outputMarkdown}, o.Output) {
		return nil, fmt.Errorf("-o is %q: use text, json or markdown", o.Output)
	}
	if !slices.Contains([]string{networkAuto, networkLoopback, networkNamespaces}, o.Network) {
		return nil, fmt.Errorf("-network is %q: use auto, namespaces or loopback", o.Network)
	}
	if o.Port != portProxy && o.Port != portAPI {
		return nil, fmt.Errorf("-port is %q: use %s or %s", o.Port, portProxy, portAPI)
	}
	if o.Rounds == 0 {
		o.Rounds = chosen.rounds
	}
	if o.Seconds == 0 {
		o.Seconds = chosen.seconds
	}
	if o.Hostile == 0 {
		o.Hostile = chosen.hostile
	}
	if o.Honest == 0 {
		o.Honest = chosen.honest
	}
	if o.Timeout == 0 {
		o.Timeout = chosen.timeout
	}
	o.Args = strings.Fields(agentArgs)
	if names != "all" {
		o.Loads = strings.Split(names, ",")
	}
	switch attackList {
	case "usual":
		o.Attacks = namesOf(usualAttacks())
	case "all":
		o.Attacks = namesOf(attacks())
	default:
		o.Attacks = strings.Split(attackList, ",")
	}
	return o, o.validate()
}

func (o *options) validate() error {
	for _, name := range o.Loads {
		if !slices.Contains(loadNames(), name) {
			return fmt.Errorf("unknown load %q: use %s", name, strings.Join(loadNames(), ", "))
		}
	}
	for _, name := range o.Attacks {
		if !slices.Contains(namesOf(attacks()), name) {
			return fmt.Errorf("unknown attack %q: use usual, all, or some of %s", name, strings.Join(namesOf(attacks()), ", "))
		}
	}
	for name, value := range map[string]float64{
		"rounds": float64(o.Rounds), "seconds": o.Seconds, "workers": float64(o.Workers), "clients": float64(o.Clients),
		"objects": float64(o.Objects), "listed": float64(o.Listed), "watches": float64(o.Watches), "watchers": float64(o.Watcher), "idle": float64(o.Idle), "held": float64(o.Held),
		"timeout": float64(o.Timeout), "hostile": o.Hostile, "honest": o.Honest, "attackers": float64(o.Attackers), "patience": o.Patience,
	} {
		if value <= 0 {
			return fmt.Errorf("-%s must be more than zero", name)
		}
	}
	return nil
}

func (o *options) wants(load string) bool { return len(o.Loads) == 0 || slices.Contains(o.Loads, load) }

// turn is how long one side is measured before it is the other's turn.
func (o *options) turn() time.Duration { return time.Duration(o.Seconds * float64(time.Second)) }

func (o *options) wantsAttack(name string) bool {
	return slices.Contains(o.Attacks, name)
}
