package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"flanwatch/assets"
	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/remediate/apply"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
)

// remedy is one command that changes something.
type remedy struct {
	*options
	std       Streams
	kind      remediate.Kind
	dryRun    bool
	plan      string
	override  []string
	lookAgain time.Duration
	schema    bool
	with      []string // parts of a purge
	flows     bool     // the plan is about connections
}

// defaultLookAgain says that the second look comes after two repair periods of flanneld.
const defaultLookAgain = -1

func (o *options) remedy(std Streams, use, short, long string, run func(context.Context, *remedy, []string) error) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	r := &remedy{options: o, std: std, kind: remediate.Kind(verb)}
	cmd := &cobra.Command{
		Use: use, Short: short,
		Long: long + `

The plan is shown with its ID before anything happens. On a terminal a typed word carries it out; without one, --plan ID
does, if the plan is still the same. A backup is written first, the change is one transaction, and it is verified by reading.

Exit code: 0 done or nothing to do, 1 --dry-run and it would change something, 2 usage, 3 unreadable, 4 refused or stale,
5 applied but not verified.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.schema {
				_, err := std.Out.Write(assets.PlanSchema)
				return err
			}
			return run(cmd.Context(), r, args)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.dryRun, "dry-run", false, "show the plan and its ID, and change nothing")
	f.StringVar(&r.plan, "plan", "", "carry the plan out without asking, if its `ID` is still this one")
	f.StringSliceVar(&r.override, "override", nil, "a `guard` that you have judged yourself; it is recorded")
	f.DurationVar(&r.lookAgain, "look-again", defaultLookAgain, "look again so long after the change; 0 not at all (default two repair periods)")
	if r.kind == remediate.KindPurge {
		f.StringSliceVar(&r.with, "with", nil, "`parts` beyond chains, jumps and tables: connections")
	}
	f.BoolVar(&r.schema, "schema", false, "print the JSON Schema of --dry-run -o json and exit")
	return cmd
}

func newReapply(o *options, std Streams) *cobra.Command {
	return o.remedy(std, "reapply", "Put back what Flannel should have",
		"reapply puts back the rules, chains and jumps that flanneld of this node keeps, in its dialect, generation and backend.",
		func(ctx context.Context, r *remedy, _ []string) error {
			return r.run(ctx, func(*apply.Store) (apply.Maker, error) { return r.choose(remediate.Reapply), nil })
		})
}

func newPurge(o *options, std Streams) *cobra.Command {
	return o.remedy(std, "purge", "Remove what Flannel left",
		`purge removes chains, jumps, native tables and old rules that Flannel left and does not use. While Flannel runs that is
only the residue of a dialect or backend that it does not use. Rules of others are never touched. With --with connections it
also deletes the connections from pod to pod that keep the translation of a rule of Flannel, which cannot be undone.`,
		func(ctx context.Context, r *remedy, _ []string) error {
			for _, part := range r.with {
				if part != remediate.PartConnections {
					return exit(ExitUsage, fmt.Errorf("--with %s: want %s", part, remediate.PartConnections))
				}
				r.flows = true
			}
			return r.run(ctx, func(*apply.Store) (apply.Maker, error) { return r.choose(remediate.Purge), nil })
		})
}

func newUndo(o *options, std Streams) *cobra.Command {
	cmd := o.remedy(std, "undo [RECEIPT]", "Take an applied plan back",
		"undo takes back what a receipt tells, the newest by default: exactly the rules that it changed, at their former places.",
		func(ctx context.Context, r *remedy, args []string) error {
			return r.run(ctx, func(s *apply.Store) (apply.Maker, error) { return r.undo(s, args) })
		})
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

// choose binds the person's choice to a way of planning.
func (r *remedy) choose(plan func(remediate.Facts, remediate.Choice) (remediate.Plan, []remediate.Refusal)) apply.Maker {
	return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
		return plan(f, remediate.Choice{Override: r.override, With: r.with})
	}
}

func (r *remedy) undo(s *apply.Store, args []string) (apply.Maker, error) {
	receipt, err := findReceipt(s, args)
	if err != nil {
		return nil, exit(ExitRefused, err)
	}
	return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
		return remediate.Undo(receipt, f, remediate.Choice{Override: r.override})
	}, nil
}

func findReceipt(s *apply.Store, args []string) (remediate.Receipt, error) {
	if len(args) == 1 {
		return s.Get(args[0])
	}
	list, err := s.List()
	for _, r := range list {
		if r.Kind != remediate.KindUndo && r.Kind != remediate.KindUnstick && (r.Result == remediate.ResultVerified || r.Result == remediate.ResultUnverified) {
			return r, nil
		}
	}
	if err == nil {
		err = errors.New("nothing was carried out here that could be taken back")
	}
	return remediate.Receipt{}, err
}

// run makes the plan, shows it, and carries it out where that was asked for.
func (r *remedy) run(ctx context.Context, choose func(*apply.Store) (apply.Maker, error)) error {
	store := apply.NewStore(r.state)
	maker, err := choose(store)
	if err != nil {
		return err
	}
	w, err := watcher.Open(r.watcher())
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	return w.Within(func() error {
		tools := apply.FindTools(ctx, r.root)
		sight := &sight{watcher: w, state: incident.NewState(), incompatible: tools.Incompatible(ctx)}
		if !r.unkept {
			sight.memory = r.remembered()
		}
		facts, err := sight.facts()
		if err == nil && r.flows {
			facts, err = sight.withFlows(ctx)
		}
		if err != nil {
			return exit(ExitUnreadable, err)
		}
		p, refused := maker(facts)
		if len(refused) > 0 && !r.dryRun {
			_ = store.Refused(r.kind, &apply.RefusedError{Refusals: refused}) // it is refused whether somebody hears of it or not
		}
		if done, err := r.show(p, refused); done {
			return err
		}
		a := &apply.Applier{
			Kind: r.kind, Facts: sight.facts, Rules: sight.rules, Store: store, Root: r.root, Tools: tools, ReadOnly: r.readOnly,
			Rescue: apply.Command(rescueCommand), Delete: w.Unstick,
		}
		return r.carryOut(ctx, a, sight, maker)
	})
}

// show prints the plan and tells whether that is all.
func (r *remedy) show(p remediate.Plan, refused []remediate.Refusal) (done bool, err error) {
	asked := r.plan != "" && !r.dryRun && len(refused) == 0
	if !asked || r.output != "json" {
		if err := newPlanReport(p, refused, r.state, time.Now()).write(r.std.Out, r.output); err != nil {
			return true, exit(ExitUnreadable, fmt.Errorf("write plan: %w", err))
		}
	}
	switch {
	case len(refused) > 0:
		return true, exit(ExitRefused, nil)
	case p.Empty():
		return true, nil
	case r.dryRun:
		return true, exit(ExitFinding, nil)
	case r.readOnly:
		return true, exit(ExitRefused, apply.ErrReadOnly)
	case r.plan != "":
		return false, nil
	case !r.onTerminal():
		return true, exit(ExitUsage, errors.New("no terminal to ask on: look with --dry-run, then give --plan ID"))
	}
	return false, r.confirm(&p)
}

func (r *remedy) onTerminal() bool {
	in, isFile := r.std.In.(*os.File)
	out, outFile := r.std.Out.(*os.File)
	return isFile && outFile && term.IsTerminal(in.Fd()) && term.IsTerminal(out.Fd())
}

// confirm asks for the word.
func (r *remedy) confirm(p *remediate.Plan) error {
	fmt.Fprintf(r.std.Out, "\ntype %s to go on: ", p.Kind)
	line, err := bufio.NewReader(r.std.In).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != string(p.Kind) {
		return exit(ExitRefused, errors.New("not confirmed; nothing was changed"))
	}
	r.plan = p.ID
	return nil
}

// carryOut applies the plan, says what came of it, and looks again later.
func (r *remedy) carryOut(ctx context.Context, a *apply.Applier, s *sight, maker apply.Maker) error {
	a.Progress = func(step string) { r.say("%s …", step) }
	receipt, err := a.Apply(ctx, r.plan, maker)
	r.sayFates(receipt.Gone)
	if err := r.outcome(err); err != nil {
		return err
	}
	if receipt.ID == "" {
		return nil
	}
	if r.output == "json" {
		if err := writeJSON(r.std.Out, newHistoryReport([]remediate.Receipt{receipt})); err != nil {
			return exit(ExitUnreadable, fmt.Errorf("write receipt: %w", err))
		}
	}
	for _, n := range receipt.Notes {
		r.say("note: %s", flannel.Printable(n))
	}
	switch receipt.Kind {
	case remediate.KindUnstick:
		r.say("receipt %s", receipt.ID)
	case remediate.KindReapply:
		r.say("verified; undo: flanwatch undo %s", receipt.ID)
		r.offerUnstick(s)
	default:
		r.say("verified; undo: flanwatch undo %s", receipt.ID)
	}
	return r.again(ctx, a, receipt, maker)
}

// say prints a line for people.
func (r *remedy) say(format string, args ...any) {
	if r.output != "json" {
		fmt.Fprintf(r.std.Out, format+"\n", args...)
	}
}

// outcome maps the end of a plan to exit codes.
func (r *remedy) outcome(err error) error {
	var unverified *apply.UnverifiedError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, apply.ErrNothing):
		r.say("nothing left to do")
		return nil
	case errors.As(err, &unverified):
		return exit(ExitUnverified, err)
	}
	return exit(ExitRefused, err)
}

// again looks a second time: somebody may have undone the change, or flanneld's own check-then-add doubled a rule.
func (r *remedy) again(ctx context.Context, a *apply.Applier, receipt remediate.Receipt, maker apply.Maker) error {
	wait := r.lookAgain
	if wait < 0 {
		f, _ := a.Facts() // where they cannot be read the usual period counts
		wait = 2 * periodOf(f)
	}
	if wait == 0 || receipt.Kind == remediate.KindUndo || receipt.Kind == remediate.KindUnstick {
		return nil
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil
	}
	if a.Store.Undone(receipt.ID) {
		return nil
	}
	next, refused, err := a.LookAgain(maker)
	if err == nil {
		a.Store.NoteSecondLook(receipt, next, refused, wait)
	}
	switch {
	case err != nil:
		return exit(ExitUnverified, fmt.Errorf("look again: %w", err))
	case len(refused) > 0:
		r.say("looked again after %v: %s", wait, refused[0].Why)
	case !next.Empty():
		return exit(ExitUnverified, fmt.Errorf("after %v it is not as it was left, and was not undone by flanwatch: %s", wait, next.Title))
	default:
		r.say("still so after %v", wait)
	}
	return nil
}

// periodOf is flanneld's repair period, where it is known.
func periodOf(f remediate.Facts) time.Duration {
	const usual = 5 * time.Second
	if d, known := f.Node.Resync.Get(); known && d > 0 {
		return min(d, time.Minute)
	}
	return usual
}

// sight reads facts through a watcher.
type sight struct {
	watcher      *watcher.Watcher
	state        *incident.State
	memory       *incident.State // what the journal tells of the last hours, nil if nobody looked
	incompatible map[flannel.TableID]string
	keepsNode    bool // what is known of the node's configuration is not read anew
}

// facts reads everything.
func (s *sight) facts() (remediate.Facts, error) {
	s.watcher.Once(func(o *incident.Observation) {
		if o.Node == nil || !s.keepsNode {
			s.state.Apply(o)
		}
	})
	return s.now()
}

// survey looks at every connection.
func (s *sight) survey() {
	s.watcher.Survey(s.state.View(s.watcher.Now()).Table.Masquerade, s.state.Apply)
}

// withFlows is facts with every connection looked at once, which plans made later are about as well. A chain that is empty
// while Flannel runs may be in the middle of a restart, so it is looked at again before.
func (s *sight) withFlows(ctx context.Context) (remediate.Facts, error) {
	if pause := (glance{}).pause(s.state.View(s.watcher.Now())); pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return remediate.Facts{}, ctx.Err()
		}
		s.watcher.Once(s.state.Apply)
	}
	s.survey()
	return s.now()
}

// rules reads the rules alone.
func (s *sight) rules(f remediate.Facts, legacy bool) (remediate.Facts, error) {
	s.watcher.Rules(s.state.Apply, legacy)
	fresh, err := s.now()
	f.Facts, f.History = fresh.Facts, fresh.History
	return f, err
}

func (s *sight) now() (remediate.Facts, error) {
	f := remediate.Facts{Incompatible: s.incompatible}
	now := s.watcher.Now()
	f.Facts, f.History = s.state.Facts(now)
	if s.memory != nil { // of what went before, one command has seen nothing itself
		_, before := s.memory.Facts(now)
		f.History.Flapping = before.Flapping
	}
	place, err := here()
	f.Place = place
	return f, err
}

// here is the boot and the network namespace of this thread.
func here() (remediate.Place, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return remediate.Place{}, fmt.Errorf("read boot id: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return remediate.Place{}, fmt.Errorf("find network namespace: %w", err)
	}
	return remediate.Place{Boot: strings.TrimSpace(string(boot)), NetNS: st.Ino}, nil
}

func newHistory(o *options, std Streams) *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use: "history", Short: "List the plans that were carried out here", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if schema {
				_, err := std.Out.Write(assets.HistorySchema)
				return err
			}
			list, err := apply.NewStore(o.state).List()
			if err2 := newHistoryReport(list).write(std.Out, o.output); err2 != nil {
				return exit(ExitUnreadable, fmt.Errorf("write history: %w", err2))
			}
			if err != nil {
				return exit(ExitUnreadable, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	return cmd
}

// rescueCommand is the hidden command of the process that survives a remedy.
const rescueCommand = "rescue-remedy"

func newRescue(std Streams) *cobra.Command {
	return &cobra.Command{
		Use: rescueCommand, Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := apply.Rescue(args, std.In, std.Out); err != nil {
				return exit(ExitUnverified, err)
			}
			return nil
		},
	}
}
