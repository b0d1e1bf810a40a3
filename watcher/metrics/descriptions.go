package metrics

func describe(name string, k kind, help string, labels ...string) *metric {
	return &metric{name, k, help, labels}
}

var descBuild = describe("build_info", gauge,
	"A metric with a constant '1' value labeled by version, revision, goversion, goos and goarch of this flanwatch.",
	"version", "revision", "goversion", "goos", "goarch")

var (
	descFlannel = describe("flannel_info", gauge,
		"A metric with a constant '1' value labeled by how flannel programs this node: mode (iptables-nft, iptables-legacy, "+
			"nftables, none), generation (the first version that wrote rules of this shape) and whether its rules carry counters.",
		"mode", "generation", "counters")
	descReader = describe("reader_up", gauge, "Whether the last read from this source succeeded (1) or not (0).", "reader")

	descFinding = describe("finding_active", gauge,
		"Whether this finding of 'flanwatch check' is active now. What could be evaluated and is inactive is 0, what could not "+
			"be evaluated is absent.", "check", "finding")
	descUnknown = describe("check_unknown", gauge,
		"Whether this part of the verdict could not be evaluated (1), for example for lack of a capability.", "check")

	descExpected = describe("rules_expected", gauge,
		"Rules flannel should have in this chain according to its configuration and version.", "family", "backend", "chain")
	descMatched    = describe("rules_matched", gauge, "Expected rules found in this chain, in the right order.", "family", "backend", "chain")
	descUnexpected = describe("rules_unexpected", gauge,
		"Rules in this chain that flannel would not put there, duplicates included.", "family", "backend", "chain")
	descRulePackets = describe("rule_packets_total", counter,
		"Packets counted by this flannel rule while flanwatch ran, across rule re-creation. In nat chains the kernel counts "+
			"only the first packet of each connection.", "family", "backend", "chain", "rule")
	descRuleBytes = describe("rule_bytes_total", counter,
		"Bytes counted by this flannel rule while flanwatch ran, across rule re-creation.", "family", "backend", "chain", "rule")

	descChanges = describe("ruleset_changes_total", counter,
		"Committed changes to flannel's chains, by the program that made them ('other' for programs outside the built-in list).",
		"family", "backend", "table", "program")
	descGapLength = describe("gap_duration_seconds", histogram,
		"Length of the spells during which flannel's rules of this table were missing or incomplete.", "table")
	descGaps    = describe("gaps_total", counter, "Gaps that ended, by what began them.", "table", "cause")
	descLastGap = describe("last_gap_timestamp_seconds", gauge,
		"Unix time at which the latest gap of this table began, 0 if none was seen.", "table")

	descFlows = describe("problem_flows", gauge,
		"Live connections of pods that are translated wrongly, as of the last look at all connections. Absent before the first.", "problem")

	descEvents = describe("events_total", counter, "Kernel notifications received, by source.", "source")
	descLost   = describe("events_lost_total", counter,
		"Times the kernel reported or a jump of its generation showed that notifications of this source were lost.", "source")

	descJournalSize    = describe("journal_size_bytes", gauge, "Size of the journal file that is being written.")
	descJournalWritten = describe("journal_last_write_timestamp_seconds", gauge, "Unix time at which the journal was last safe on disk, 0 if never.")
	descJournalFailed  = describe("journal_write_failures_total", counter, "Times that writing the journal began to fail.")
)
