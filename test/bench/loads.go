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
		{"watch-memory", "memory of idle watches, in an agent that has done little else", measureWatchMemory},
		{
			"get",
			"get one ConfigMap",
			repeated{name: "get", what: getOne(), goal: goals{ratio: 0.80, cpu: 878. / 3 / pinnipedsGet}}.run,
		},
		{
			"get-1",
			"get one ConfigMap, one worker",
			repeated{name: "get-1", single: true, what: getOne(), goal: goals{addedLatency: 0.25}}.run,
		},
		{
			"get-token",
			"get one ConfigMap, with the bearer token of a service account",
			repeated{name: "get-token", token: true, what: getOne()}.run,
		},
		{
			"get-http1",
			"get one ConfigMap, over HTTP/1.1",
			repeated{name: "get-http1", style: style{http1: true}, what: getOne()}.run,
		},
		{
			"names",
			"get over many names, each seen for the first time",
			namesLoad{name: "names", goal: goals{ratio: 0.75, cpu: 1341. / 3 / pinnipedsGet}}.run,
		},
		{
			"names-1",
			"the same, one worker",
			namesLoad{name: "names-1", single: true, goal: goals{ratio: 0.68}}.run,
		},
		{
			"list",
			"list many ConfigMaps, compressed, as kubectl and client-go ask",
			repeated{name: "list", what: listAll(), goal: goals{ratio: 0.90, cpu: 20000. / 4 / pinnipedsGet}}.run,
		},
		{
			"list-1",
			"the same, one worker",
			repeated{name: "list-1", single: true, what: listAll()}.run,
		},
		{
			"list-plain",
			"list many ConfigMaps, not compressed",
			repeated{
				name:  "list-plain",
				style: style{plain: true},
				what:  listAll(),
				goal:  goals{ratio: 0.85, cpu: 34700. / 4 / pinnipedsGet},
			}.run,
		},
		{
			"list-plain-1",
			"the same, one worker",
			repeated{name: "list-plain-1", single: true, style: style{plain: true}, what: listAll()}.run,
		},
		{
			"list-protobuf",
			"list many ConfigMaps as protobuf, compressed, as controllers ask",
			repeated{name: "list-protobuf", style: style{accept: acceptProtobuf}, what: listAll()}.run,
		},
		{
			"list-http1",
			"list many ConfigMaps, compressed, over HTTP/1.1",
			repeated{name: "list-http1", style: style{http1: true}, what: listAll()}.run,
		},
		{"create", "create, dry run", createLoad},
		{"mixture", "requests recorded from kubectl, a controller and helm", measureMixture},
		{"connect", "a new TLS connection for each request", connectLoad},
		{"idle", "idle TLS connections", measureIdle},
		{"watches", "watches opened at once, and who else notices", measureWatches},
		{"held", "very many watches held by one replica", measureHeld},
		{"events", "delay of events over idle watches", measureEvents},
		{"login", "TokenCredentialRequests", measureLogin},
		{"exec", "exec in a pod", execLoad},
		{"grant", "a permission granted, and taken away", measureGrant},
		{"honest", "what honest users do that is more than usual, at the shipped limits", measureHonest},
		{"hostile", "attacks beside honest users, at the shipped limits", measureHostile},
		{"survive", "attacks while the certificate is renewed and all replicas are replaced", measureSurvive},
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
