package flannel

// RuleStatus says how one rule that is there, or should be, compares.
type RuleStatus string

// The statuses of a rule; the words are part of the JSON contract.
const (
	RuleOK        RuleStatus = "ok"
	RuleMissing   RuleStatus = "missing"   // wanted, not there
	RuleExtra     RuleStatus = "extra"     // there, not wanted
	RuleDuplicate RuleStatus = "duplicate" // wanted once, there again
	RuleMisplaced RuleStatus = "misplaced" // wanted and there, but out of order
	RuleVariant   RuleStatus = "variant"   // differs from a wanted rule only in --random-fully
	RuleOpaque    RuleStatus = "opaque"    // there, and not understood in full
)

// ChainState is the worst thing that is true of a chain; the words are part of the JSON contract.
type ChainState string

// The states of a chain.
const (
	ChainOK           ChainState = "ok"
	ChainEmpty        ChainState = "empty"        // present, wanted with rules, without any
	ChainAbsent       ChainState = "absent"       // wanted and verified not to exist
	ChainUnreferenced ChainState = "unreferenced" // nothing jumps to it
	ChainPartial      ChainState = "partial"      // some wanted rules are missing
	ChainDiffers      ChainState = "differs"      // all wanted rules are there, and something else is wrong
	ChainShadowed     ChainState = "shadowed"     // a foreign rule decides before it
	ChainLeftover     ChainState = "leftover"     // Flannel does not run here any more, or not in this way
	ChainUnreadable   ChainState = "unreadable"
)

// RuleDiff is one line of the comparison: a rule wanted, found, or both.
type RuleDiff struct {
	Rule   Rule
	Status RuleStatus
	Want   int // position among the wanted rules from 1, 0 if it is not wanted
	Found  int // position in the chain from 1, 0 if it is not there
	Times  int // how many identical copies this line stands for, at least 1
}

// Hook is the place of the jump that leads from a base chain into a chain. For a base chain of Flannel's own (native
// mode) Chain is empty.
type Hook struct {
	Chain    string `json:"chain"`    // the base chain that holds the jump, e.g. "POSTROUTING"
	Position int    `json:"position"` // from 1; 0 if there is no jump
	Of       int    `json:"of"`       // rules in that base chain
	Copies   int    `json:"-"`        // jumps found; above 1 the chain is walked more than once
	Entry    Entry  `json:"-"`        // the first jump, if Position is not 0
}

// ChainDiff compares one chain with what Flannel should have in it.
type ChainDiff struct {
	ID     ChainID
	State  ChainState
	Hook   Hook
	Wanted int // rules wanted
	Found  int // wanted rules that are there, wherever they stand
	Rules  []RuleDiff
}
