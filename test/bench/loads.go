package main

import "context"

// load is one thing that is measured.
type load struct {
	name, about string
	run         func(ctx context.Context, w *world, r *report) error
}

// loads are all, in the order in which they run: what needs a fresh agent comes first.
func loads() []load {
	return []load{
		{"size", "sizes of the programs", measureSizes},
		{"memory", "resident memory of the agent without load", measureMemory},
		{"get", "get one ConfigMap", getLoad{name: "get", goal: goals{ratio: 0.80, quotient: 0.35}}.run},
		{
			"get-1",
			"get one ConfigMap, one worker",
			getLoad{name: "get-1", single: true, goal: goals{addedLatency: 0.25, quotient: 0.65}}.run,
		},
		{
			"names",
			"get over many names, each seen for the first time",
			getLoad{name: "names", names: true, goal: goals{ratio: 0.70, quotient: 0.50}}.run,
		},
		{
			"names-1",
			"the same, one worker",
			getLoad{name: "names-1", names: true, single: true, goal: goals{ratio: 0.60, quotient: 1.15}}.run,
		},
		{"list", "list all ConfigMaps", listLoad},
		{"create", "create, dry run", createLoad},
		{"connect", "a new TLS connection for each request", connectLoad},
		{"idle", "idle TLS connections", measureIdle},
		{"watches", "watches opened at once, and who else notices", measureWatches},
		{"held", "very many watches held by one replica", measureHeld},
		{"events", "delay of events over idle watches", measureEvents},
		{"login", "TokenCredentialRequests", measureLogin},
		{"exec", "exec in a pod", execLoad},
		{"grant", "a permission granted, and taken away", measureGrant},
		{"hostile", "attacks beside honest users, at the shipped limits", measureHostile},
		{"cli", "starts of the CLI, and kubectl", measureCLI},
	}
}

func loadNames() []string {
	var names []string
	for _, l := range loads() {
		names = append(names, l.name)
	}
	return names
}
