package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/remediate/apply"
	"flanwatch/ui"
	"flanwatch/watcher"
	"flanwatch/watcher/diagnose"
)

// desk makes the plans that a screen wishes for, from what is being watched, and carries out those that are confirmed. It
// works in a goroutine of its own: neither the fold nor the screen waits for it.
type desk struct {
	*options
	live    *live
	now     func() flannel.Time
	store   *apply.Store
	answers *ui.Box[ui.Answer]
	ask     wishes
	looks   chan look2
	busy    sync.WaitGroup // while a plan is carried out

	// Of the goroutine that works.
	tools        *apply.Tools
	incompatible map[flannel.TableID]string
	asked        time.Time // when iptables-nft was asked for the tables that it refuses
	place        remediate.Place
	eyes         *watcher.Watcher // reads anew what a plan is held against
}

// wishes holds the newest wish that was not begun.
type wishes struct {
	mu   sync.Mutex
	wish *ui.Wish
	wake chan struct{}
}

func (q *wishes) put(w ui.Wish) {
	q.mu.Lock()
	q.wish = &w
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *wishes) take() *ui.Wish {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.wish
	q.wish = nil
	return w
}

// look2 is a second look that is due.
type look2 struct {
	answer  ui.Answer
	wish    ui.Wish
	receipt remediate.Receipt
	after   time.Duration
}

func newDesk(o *options, l *live, now func() flannel.Time) *desk {
	return &desk{
		options: o, live: l, now: now, store: apply.NewStore(o.state), answers: ui.NewAnswers(),
		ask: wishes{wake: make(chan struct{}, 1)}, looks: make(chan look2, 16),
	}
}

// run fulfils wishes in the watched network namespace until the context ends.
func (d *desk) run(ctx context.Context, w *watcher.Watcher) {
	err := w.Within(func() error {
		place, err := here()
		if err != nil {
			return err
		}
		d.place = place
		for {
			select {
			case <-ctx.Done():
				return nil
			case l := <-d.looks:
				d.lookAgain(l)
			case <-d.ask.wake:
				if w := d.ask.take(); w != nil {
					d.fulfil(ctx, *w)
				}
			}
		}
	})
	for err != nil {
		select {
		case <-ctx.Done():
			return
		case <-d.ask.wake:
			if w := d.ask.take(); w != nil {
				d.answers.Put(ui.Answer{Wish: w.Number, Trouble: err.Error()})
			}
		}
	}
}

// wish takes a wish of the screen. It does not wait.
func (d *desk) wish(w ui.Wish) {
	if w.Do == ui.DoApply {
		d.busy.Add(1)
	}
	d.ask.put(w)
}

// finish waits for the end of a plan that is being carried out, though not for ever.
func (d *desk) finish() {
	const most = 30 * time.Second
	idle := make(chan struct{})
	go func() {
		d.busy.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(most):
	}
}

func (d *desk) fulfil(ctx context.Context, w ui.Wish) {
	a := ui.Answer{Wish: w.Number}
	switch w.Do {
	case ui.DoHistory:
		list, err := d.store.List()
		if a.Receipts = append([]remediate.Receipt{}, list...); err != nil && len(list) == 0 {
			a.Trouble = err.Error()
		}
	case ui.DoApply:
		defer d.busy.Done()
		d.carryOut(context.WithoutCancel(ctx), w)
		return
	default:
		offers, err := d.offers(ctx, w)
		if err != nil {
			a.Trouble = err.Error()
		}
		for _, o := range offers {
			a.Offers = append(a.Offers, ui.OfferOf(o, d.state, w.Opened))
		}
	}
	d.answers.Put(a)
}

func (d *desk) offers(ctx context.Context, w ui.Wish) ([]remediate.Offer, error) {
	d.askTools(ctx)
	f := d.facts()
	if w.Do == ui.DoOffer {
		return remediate.Offers(f, w.Chains, w.Kind), nil
	}
	make, o, err := d.maker(w)
	if err != nil {
		return nil, err
	}
	o.Plan, o.Refused = make(f)
	return []remediate.Offer{o}, nil
}

// askTools asks iptables-nft which tables it refuses, at most every few seconds: programs are run for that.
func (d *desk) askTools(ctx context.Context) {
	const fresh = 10 * time.Second
	if d.tools == nil {
		d.tools = apply.FindTools(ctx, d.root)
	}
	if time.Since(d.asked) < fresh {
		return
	}
	d.incompatible = d.tools.Incompatible(ctx)
	d.asked = time.Now()
}

// maker is the way to make the plan of a wish.
func (d *desk) maker(w ui.Wish) (apply.Maker, remediate.Offer, error) {
	o := remediate.Offer{Kind: w.Kind, Choice: w.Choice, Receipt: w.Receipt}
	if w.Kind != remediate.KindUndo {
		return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
			made := remediate.Make(f, o)
			return made.Plan, made.Refused
		}, o, nil
	}
	var named []string
	if w.Receipt != "" {
		named = []string{w.Receipt}
	}
	r, err := findReceipt(d.store, named)
	if err != nil {
		return nil, o, err
	}
	o.Receipt = r.ID
	return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) { return remediate.Undo(r, f, w.Choice) }, o, nil
}

// facts is what is being watched, as of now.
func (d *desk) facts() remediate.Facts {
	f := remediate.Facts{Incompatible: d.incompatible, Place: d.place}
	f.Facts, f.History = d.live.facts(d.now())
	return f
}

// facts gives what a plan is made from.
func (l *live) facts(now flannel.Time) (diagnose.Facts, diagnose.History) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Facts(now)
}

// again reads the rules and processes anew on top of what is known. What tells the networks is kept: once rules are gone,
// only those who watched them know what they said.
func (d *desk) again() (*sight, error) {
	if d.eyes == nil {
		w, err := watcher.Open(d.watcher())
		if err != nil {
			return nil, err
		}
		d.eyes = w
	}
	d.live.mu.Lock()
	state := d.live.state.Clone()
	d.live.mu.Unlock()
	return &sight{watcher: d.eyes, state: state, incompatible: d.incompatible, keepsNode: true}, nil
}

// carryOut carries a confirmed plan out, and tells of each step.
func (d *desk) carryOut(ctx context.Context, w ui.Wish) {
	a := ui.Answer{Wish: w.Number}
	make, _, err := d.maker(w)
	if err != nil {
		a.Outcome = &ui.Outcome{Result: remediate.ResultRefused, Why: err.Error()}
		d.answers.Put(a)
		return
	}
	d.askTools(ctx)
	eyes, err := d.again()
	if err != nil {
		a.Outcome = &ui.Outcome{Result: remediate.ResultRefused, Why: err.Error()}
		d.answers.Put(a)
		return
	}
	if w.Kind == remediate.KindUnstick || len(w.Choice.With) > 0 {
		eyes.survey()
	}
	steps := progress{put: func(list []ui.Step) { d.answers.Put(ui.Answer{Wish: w.Number, Steps: list}) }}
	receipt, err := (&apply.Applier{
		Kind: w.Kind, Facts: eyes.facts, Rules: eyes.rules, Store: d.store, Root: d.root, Tools: d.tools, ReadOnly: d.readOnly,
		Rescue: apply.Command(rescueCommand), Delete: eyes.watcher.Unstick, Receipt: remediate.ReceiptID(remediate.Plan{ID: w.ID}, w.Opened), Progress: steps.begin,
	}).Apply(ctx, w.ID, make)
	a.Steps, a.Outcome = steps.end(), outcomeOf(receipt, err)
	if after := d.secondLook(a.Outcome, w); after > 0 {
		a.Outcome.Look = after
		time.AfterFunc(after, func() { d.looks <- look2{a, w, receipt, after} })
	}
	d.answers.Put(a)
}

func outcomeOf(r remediate.Receipt, err error) *ui.Outcome {
	var unverified *apply.UnverifiedError
	switch {
	case err == nil:
		return &ui.Outcome{Result: remediate.ResultVerified, Receipt: r.ID}
	case errors.Is(err, apply.ErrNothing):
		return &ui.Outcome{}
	case errors.As(err, &unverified) && unverified.Returned:
		return &ui.Outcome{Result: remediate.ResultFailed, Why: strings.Join(unverified.Problems, "; ")}
	case errors.As(err, &unverified):
		return &ui.Outcome{Result: remediate.ResultUnverified, Why: strings.Join(unverified.Problems, "; "), Receipt: unverified.Receipt}
	}
	return &ui.Outcome{Result: remediate.ResultRefused, Why: strings.TrimPrefix(err.Error(), "refused: ")}
}

// secondLook is when to look again: after two repair periods of flanneld. What was taken back is not looked after.
func (d *desk) secondLook(o *ui.Outcome, w ui.Wish) time.Duration {
	if o.Result != remediate.ResultVerified || w.Kind == remediate.KindUndo {
		return 0
	}
	return 2 * periodOf(d.facts())
}

// lookAgain makes a plan anew some time after it was carried out.
func (d *desk) lookAgain(l look2) {
	make, _, err := d.maker(l.wish)
	if err != nil || d.store.Undone(l.receipt.ID) {
		return
	}
	next, refused := make(d.facts())
	d.store.NoteSecondLook(l.receipt, next, refused, l.after)
	o := *l.answer.Outcome
	switch {
	case len(refused) > 0:
		o.Again = fmt.Sprintf("after %v: %s", l.after, refused[0].Why)
	case next.Empty():
		o.Again, o.Lasting = fmt.Sprintf("still so after %v", l.after), true
	default:
		o.Again = fmt.Sprintf("after %v it is not as it was left, and flanwatch did not undo it: %s", l.after, next.Title)
	}
	l.answer.Outcome = &o
	d.answers.Put(l.answer)
}

// progress times the steps of a plan.
type progress struct {
	put   func([]ui.Step)
	steps []ui.Step
	since time.Time
}

func (p *progress) begin(name string) {
	p.steps = append(p.end(), ui.Step{Name: name})
	p.since = time.Now()
	p.put(p.steps)
}

// end gives the steps with the last one done.
func (p *progress) end() []ui.Step {
	out := append([]ui.Step{}, p.steps...) // the screen holds the list of before
	if n := len(out); n > 0 {
		out[n-1].Done, out[n-1].Took = true, time.Since(p.since)
	}
	return out
}
