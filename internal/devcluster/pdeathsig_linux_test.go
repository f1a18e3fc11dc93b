package devcluster

const pdeathsigMissing = false
