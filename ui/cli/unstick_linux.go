package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"flanwatch/conntrack"
	"flanwatch/conntrack/ctnl"
	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
)

// unstick is the command that deletes connections.
type unstick struct {
	*options
	std    Streams
	dryRun bool
	plan   string
	kinds  []string
}

func newUnstick(o *options, std Streams) *cobra.Command {
	u := &unstick{options: o, std: std}
	cmd := &cobra.Command{
		Use:   "unstick",
		Short: "Drop connections that keep a wrong translation",
		Long: `unstick deletes exactly the listed entries of connection tracking, each looked at once more before, so that the next packet
of each connection is translated anew. It touches no other entry. It cannot be undone.

Exit code: 0 done or nothing to do, 1 --dry-run and it would delete something, 2 usage, 3 unreadable, 4 refused or stale,
5 not all of them are gone.`,
		Example: "  flanwatch unstick --dry-run\n  flanwatch unstick --plan 0123456789ab",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return u.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.BoolVar(&u.dryRun, "dry-run", false, "show the plan and its ID, and change nothing")
	f.StringVar(&u.plan, "plan", "", "carry the plan out without asking, if its `ID` is still this one")
	f.StringSliceVar(&u.kinds, "kind", []string{"bare", "translated", "stale"}, "only connections of these `kinds`")
	return cmd
}

// chosen gives the kinds asked for.
func (u *unstick) chosen() ([]conntrack.Kind, error) {
	var out []conntrack.Kind
	for _, word := range u.kinds {
		k := conntrack.Kind(word)
		if !conntrack.CanUnstick(k) {
			return nil, fmt.Errorf("--kind %s: want bare, translated or stale", word)
		}
		out = append(out, k)
	}
	return out, nil
}

func (u *unstick) run(ctx context.Context) error {
	kinds, err := u.chosen()
	if err != nil {
		return exit(ExitUsage, err)
	}
	w, err := watcher.Open(u.watcher())
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	defer w.Close()
	view, err := lookWith(ctx, w, u.options, glance{flows: true})
	if err != nil {
		return err
	}
	survey, known := view.Table.Flows.Get()
	if missing := unreadableTable(view.Table); !known && len(missing) > 0 {
		return exit(ExitUnreadable, fmt.Errorf("%s: %s", missing[len(missing)-1].What, missing[len(missing)-1].Why))
	}
	plan, guards := planUnstick(&survey, kinds, view)
	r := newUnstickReport(plan, guards)
	if err := r.write(u.std.Out, u.output, u.plan != "" && !u.dryRun); err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write plan: %w", err))
	}
	if done, err := u.mayGoOn(plan, guards); done {
		return err
	}
	return u.carryOut(w, plan)
}

// unstickGuard is a condition that stands before a deletion.
type unstickGuard struct {
	Guard  string `json:"guard"`
	OK     bool   `json:"ok"`
	Why    string `json:"why"`
	Change string `json:"change,omitempty"`
	Judge  bool   `json:"judge"`
}

// planUnstick plans what helps: a bare connection that is deleted while the rules are missing begins anew as bare, so these
// are left out then.
func planUnstick(s *conntrack.Survey, kinds []conntrack.Kind, v *incident.View) (conntrack.Plan, []unstickGuard) {
	guards := []unstickGuard{}
	for _, f := range v.Findings {
		if f.ID == "flows-bare" && f.Refused != "" && slices.Contains(kinds, conntrack.Bare) {
			kinds = slices.DeleteFunc(slices.Clone(kinds), func(k conntrack.Kind) bool { return k == conntrack.Bare })
			guards = append(guards, unstickGuard{
				Guard: "rules-missing", Why: "bare connections are left alone: " + f.Refused,
				Change: "flanwatch reapply, or flanneld's own repair",
			})
		}
	}
	return conntrack.Unstick(s, kinds...), guards
}

// mayGoOn tells whether nothing is left to do, and how that ends.
func (u *unstick) mayGoOn(p conntrack.Plan, guards []unstickGuard) (done bool, err error) {
	switch {
	case len(p.Flows) == 0 && len(guards) > 0:
		return true, exit(ExitRefused, nil)
	case len(p.Flows) == 0 && u.plan != "" && u.plan != p.ID && !u.dryRun:
		return true, nil // all of them are gone already
	case len(p.Flows) == 0:
		return true, nil
	case u.dryRun:
		return true, exit(ExitFinding, nil)
	case u.readOnly:
		return true, exit(ExitRefused, errors.New("read-only: nothing is deleted"))
	case u.plan != "" && u.plan != p.ID:
		return true, exit(ExitRefused, fmt.Errorf("plan %s is stale: other connections are concerned now (%s)", u.plan, p.ID))
	case u.plan != "":
		return false, nil
	case !u.onTerminal():
		return true, exit(ExitUsage, errors.New("no terminal to ask on: look with --dry-run, then give --plan ID"))
	}
	return false, u.confirm()
}

func (u *unstick) onTerminal() bool {
	in, isFile := u.std.In.(*os.File)
	out, outFile := u.std.Out.(*os.File)
	return isFile && outFile && term.IsTerminal(in.Fd()) && term.IsTerminal(out.Fd())
}

// confirm asks for the word.
func (u *unstick) confirm() error {
	fmt.Fprint(u.std.Out, "\ntype unstick to go on: ")
	line, err := bufio.NewReader(u.std.In).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "unstick" {
		return exit(ExitRefused, errors.New("not confirmed; nothing was changed"))
	}
	return nil
}

// carryOut deletes one entry after the other, and says what became of each that could not be deleted.
func (u *unstick) carryOut(w *watcher.Watcher, p conntrack.Plan) error {
	var deleted, gone, left int
	var first error
	for i := range p.Flows {
		err := w.Unstick(&p.Flows[i].Flow)
		switch {
		case err == nil:
			deleted++
		case errors.Is(err, ctnl.ErrGone):
			gone++
		default:
			left++
			if first == nil {
				first = err
			}
		}
	}
	if u.output != "json" {
		fmt.Fprintf(u.std.Out, "deleted %d, gone already %d, left alone %d\n", deleted, gone, left)
	} else if err := json.NewEncoder(u.std.Out).Encode(map[string]int{"deleted": deleted, "gone": gone, "left": left}); err != nil {
		return exit(ExitUnverified, fmt.Errorf("write result: %w", err))
	}
	if left > 0 {
		return exit(ExitUnverified, first)
	}
	return nil
}

// unstickReport is the plan as text and as JSON, in the form of every remedy's.
type unstickReport struct {
	Schema string         `json:"schema"`
	ID     string         `json:"id"`
	Title  string         `json:"title"`
	Why    []string       `json:"why"`
	Steps  []unstickStep  `json:"steps"`
	Guards []unstickGuard `json:"guards"`
	Backup string         `json:"backup"`
	Undo   string         `json:"undo"`
}

type unstickStep struct {
	Mark string `json:"mark"`
	Text string `json:"text"`
}

func newUnstickReport(p conntrack.Plan, guards []unstickGuard) unstickReport {
	r := unstickReport{
		Schema: "flanwatch.plan/v1", Title: "Nothing to delete", Why: []string{}, Steps: []unstickStep{}, Guards: guards,
	}
	if len(p.Flows) == 0 {
		return r
	}
	r.ID, r.Title, r.Why = p.ID, fmt.Sprintf("Delete %d connections", len(p.Flows)), p.Effect()
	if len(p.Flows) == 1 {
		r.Title = "Delete 1 connection"
	}
	for i := range p.Flows {
		r.Steps = append(r.Steps, unstickStep{"-", fmt.Sprintf("%s %s", p.Flows[i].Kind, &p.Flows[i].Flow)})
	}
	return r
}

// write prints the plan. Where it is carried out at once and JSON is asked for, only the result is printed.
func (r unstickReport) write(out io.Writer, form output, atOnce bool) error {
	if form == "json" {
		if atOnce && len(r.Steps) > 0 {
			return nil
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(r)
	}
	var b strings.Builder
	fmt.Fprintln(&b, r.Title)
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "%s %s\n", s.Mark, flannel.Printable(s.Text))
	}
	for _, w := range r.Why {
		fmt.Fprintf(&b, "effect   %s\n", w)
	}
	for _, g := range r.Guards {
		fmt.Fprintf(&b, "refused  %s\n         what would change it: %s\n", flannel.Printable(g.Why), g.Change)
	}
	if r.ID != "" {
		fmt.Fprintf(&b, "undo     none\nplan     %s\n", r.ID)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
