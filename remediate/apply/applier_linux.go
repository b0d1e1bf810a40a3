package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/remediate"
)

// What keeps a plan from being carried out. Nothing was changed then.
var (
	ErrNothing  = errors.New("nothing to do")
	ErrStale    = errors.New("the plan is stale: the rules concerned have changed since it was made")
	ErrReadOnly = errors.New("read-only: plans can be looked at, not carried out")
	ErrNoBackup = errors.New("no backup could be written")
	ErrLocked   = errors.New("the lock of iptables-legacy is held")
	ErrUnsteady = errors.New("the ruleset changed during every one of many attempts")
)

// RefusedError carries the guards that stand in the way. Nothing was changed.
type RefusedError struct{ Refusals []remediate.Refusal }

func (e *RefusedError) Error() string {
	var why []string
	for _, r := range e.Refusals {
		why = append(why, r.Why)
	}
	return "refused: " + strings.Join(why, " ")
}

// UnverifiedError says that the change was begun and did not end as planned.
type UnverifiedError struct {
	Receipt  string
	Final    bool // what was done cannot be taken back
	Problems []string
	Returned bool // the state is that of before
}

func (e *UnverifiedError) Error() string {
	end := "not undone; flanwatch undo " + e.Receipt + " takes it back"
	switch {
	case e.Returned:
		end = "the state is that of before"
	case e.Final:
		end = "what was deleted cannot be brought back"
	}
	return strings.Join(e.Problems, "; ") + ": " + end
}

// Maker makes a plan from facts: remediate.Reapply, Purge or Undo with its choice.
type Maker func(remediate.Facts) (remediate.Plan, []remediate.Refusal)

// The bounds of waiting.
const (
	lockWait = 10 * time.Second // for the lock of iptables-legacy
	tries    = 200              // of a batch that others' commits make stale; one takes about a millisecond
)

// Applier carries plans out.
type Applier struct {
	Facts func() (remediate.Facts, error) // reads everything anew
	// Rules gives the same facts with the rules read anew, of iptables-legacy only if asked for: that can take long.
	Rules func(f remediate.Facts, legacy bool) (remediate.Facts, error)
	// Delete deletes one connection, as ctnl.Reader.Delete does. A plan without connections needs none.
	Delete func(*conntrack.Flow) error
	Store  *Store
	Root   string // folder below which the node's files and programs lie, "/" on the node itself

	Kind     remediate.Kind // of the plan, to name one that is refused
	Receipt  string         // ID of the receipt, where it was named before; "" for one with the time
	Rescue   []string       // command that runs Rescue, with the receipt and root added; nil for none
	LockWait time.Duration  // 0 for ten seconds
	ReadOnly bool
	Tools    *Tools               // nil: look for them
	Progress func(step string)    // told of each step as it begins; may be nil
	Now      func() time.Time     // nil: time.Now
	before   func(b commitMoment) // tests make things happen here
}

// commitMoment tells tests where a run is.
type commitMoment struct {
	step string // "batch", "transaction"
	try  int
}

func (a *Applier) step(s string) {
	if a.Progress != nil {
		a.Progress(s)
	}
}

func (a *Applier) moment(step string, try int) {
	if a.before != nil {
		a.before(commitMoment{step, try})
	}
}

func (a *Applier) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// Apply makes the plan anew and carries it out if its ID is still the one that was confirmed. The error is ErrNothing,
// ErrStale, ErrReadOnly, ErrNoBackup, ErrLocked or a RefusedError where nothing was changed, and an UnverifiedError where
// something was.
func (a *Applier) Apply(ctx context.Context, id string, make Maker) (remediate.Receipt, error) {
	if a.ReadOnly {
		return remediate.Receipt{}, ErrReadOnly
	}
	a.step("check")
	facts, err := a.Facts()
	if err != nil {
		return remediate.Receipt{}, fmt.Errorf("read facts: %w", err)
	}
	p, err := plan(facts, id, make)
	if err != nil {
		a.refused(id, p, err)
		return remediate.Receipt{}, err
	}
	r := &run{Applier: a, id: id, make: make, facts: facts, plan: p, receipt: remediate.NewReceipt(p, a.now(), facts.Place)}
	r.receipt.By = Myself()
	if a.Receipt != "" {
		r.receipt.ID = a.Receipt
	}
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		a.refused(id, p, err)
		return remediate.Receipt{}, err
	}
	a.step("apply")
	if err := r.carryOut(ctx); err != nil {
		return r.receipt, r.failed(err)
	}
	a.step("verify")
	if err := r.verified(ctx); err != nil {
		return r.receipt, err
	}
	return r.receipt, r.deleteConnections()
}

// plan makes a plan and holds it against the ID that was confirmed.
func plan(f remediate.Facts, id string, make Maker) (remediate.Plan, error) {
	p, refused := make(f)
	switch {
	case len(refused) > 0:
		return p, &RefusedError{refused}
	case p.Empty():
		return p, ErrNothing
	case p.ID != id:
		return p, fmt.Errorf("%w: it is %s now", ErrStale, p.ID)
	}
	return p, nil
}

// run is one plan on its way.
type run struct {
	*Applier
	id      string
	make    Maker
	facts   remediate.Facts
	plan    remediate.Plan
	receipt remediate.Receipt
	socket  *socket
	lock    *Lock
	rescue  *rescue
	begun   bool // something may have been changed
}

// prepare does everything that can fail before something is changed.
func (r *run) prepare(ctx context.Context) error {
	if !r.plan.ChangesRules() {
		return r.Store.Put(r.receipt)
	}
	if r.Tools == nil {
		r.Tools = FindTools(ctx, r.Root)
	}
	for _, t := range r.plan.TablesOf(flannel.IptablesLegacy) {
		for _, verb := range []string{restore, save} {
			if _, err := r.Tools.Find(t.Backend, t.Family, verb); err != nil {
				return &RefusedError{[]remediate.Refusal{{
					Name: "tool-missing", Why: "Rules of iptables-legacy are changed by its own program, and there is none: " + err.Error() + ".",
					Change: "install iptables",
				}}}
			}
		}
	}
	if r.touchesNft() {
		s, err := dial()
		if err != nil {
			return fmt.Errorf("open nf_tables: %w", err)
		}
		r.socket = s
		if err := r.fill(&r.plan); err != nil {
			return err
		}
	}
	r.step("backup")
	if err := r.backup(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	return nil
}

func (r *run) touchesNft() bool {
	return len(r.plan.TablesOf(flannel.IptablesNft)) > 0 || len(r.plan.TablesOf(flannel.Nftables)) > 0
}

// backup writes the whole ruleset and the beginning of the receipt to disk.
func (r *run) backup(ctx context.Context) error {
	text, err := r.Tools.saveAll(ctx, len(r.plan.TablesOf(flannel.IptablesLegacy)) > 0)
	if err != nil {
		return err
	}
	if r.socket != nil {
		text += r.dumpText()
	}
	r.receipt.Backup = r.Store.backupPath(r.receipt.ID)
	r.receipt.Tables, r.receipt.Edits = r.plan.Tables, r.plan.Edits
	for _, g := range r.plan.Guards {
		if strings.HasPrefix(g.Why, "overridden: ") {
			r.receipt.Judged = append(r.receipt.Judged, g.Name)
		}
	}
	if err := r.Store.writeBackup(r.receipt.ID, text); err != nil {
		return err
	}
	return r.Store.Begin(r.receipt)
}

// carryOut changes the rules: legacy tables first, one transaction each, then everything in nf_tables at once, so that the
// last step is the largest and cannot be half done.
func (r *run) carryOut(ctx context.Context) error {
	if tables := r.plan.TablesOf(flannel.IptablesLegacy); len(tables) > 0 {
		if err := r.legacy(ctx, tables); err != nil {
			return err
		}
	}
	if r.touchesNft() {
		if err := r.commit(ctx); err != nil {
			return err
		}
	}
	r.rescue.done()
	return nil
}

// failed takes back what was done before a failure, and records it.
func (r *run) failed(cause error) error {
	returned := true
	problems := []string{cause.Error()}
	if r.begun {
		if err := r.revert(); err != nil {
			returned = false
			problems = append(problems, "return to the state before: "+err.Error())
		}
	}
	r.rescue.done()
	r.receipt.Result, r.receipt.Why = remediate.ResultFailed, strings.Join(problems, "; ")
	if !returned {
		r.receipt.Result = remediate.ResultUnverified
	}
	if err := r.Store.Put(r.receipt); err != nil {
		problems = append(problems, err.Error())
	}
	var refused *RefusedError
	clean := errors.Is(cause, ErrStale) || errors.Is(cause, ErrNothing) || errors.Is(cause, ErrLocked) || errors.Is(cause, ErrUnsteady)
	if returned && (clean || errors.As(cause, &refused)) {
		return cause
	}
	return &UnverifiedError{Receipt: r.receipt.ID, Problems: problems, Returned: returned}
}

// revert takes back what was done to legacy tables, and looks whether they are as they were.
func (r *run) revert() error {
	if err := revertLegacy(r.Tools, r.receipt); err != nil {
		return err
	}
	fresh, err := r.Rules(r.facts, true)
	if err != nil {
		return fmt.Errorf("read rules: %w", err)
	}
	if problems := asBefore(r.receipt, fresh); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

func (r *run) close() {
	if r.lock != nil {
		r.lock.Release()
	}
	r.rescue.done()
	if r.socket != nil {
		r.socket.close()
	}
}
