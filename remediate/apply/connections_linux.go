package apply

import (
	"errors"
	"fmt"

	"flanwatch/conntrack/ctnl"
	"flanwatch/remediate"
)

// errNoDelete: whoever made the Applier gave it no way to delete connections.
var errNoDelete = errors.New("connections cannot be deleted here")

// deleteConnections deletes the connections of a plan, one by one, after its rules are in place, so that the next packet of
// each is judged by them. What became of each is in the receipt. There is no way back.
func (r *run) deleteConnections() error {
	if len(r.receipt.Gone) == 0 {
		return nil
	}
	r.step("delete")
	var first error
	for i := range r.receipt.Gone {
		g := &r.receipt.Gone[i]
		err := errNoDelete
		if r.Delete != nil {
			err = r.Delete(&g.Flow)
		}
		switch {
		case err == nil:
			g.Fate = remediate.FateDeleted
		case errors.Is(err, ctnl.ErrGone):
			g.Fate = remediate.FateGone
		default:
			g.Fate, g.Why = remediate.FateLeft, err.Error()
			if first == nil {
				first = err
			}
		}
	}
	var problems []string
	r.receipt.Result = remediate.ResultVerified
	if left := remediate.Fates(r.receipt.Gone)[remediate.FateLeft]; left > 0 {
		problems = append(problems, fmt.Sprintf("%d of %d connections were left alone: %v", left, len(r.receipt.Gone), first))
		r.receipt.Result, r.receipt.Why = remediate.ResultUnverified, problems[0]
	}
	if err := r.Store.Put(r.receipt); err != nil {
		problems = append(problems, err.Error())
	}
	if len(problems) > 0 {
		return &UnverifiedError{Receipt: r.receipt.ID, Problems: problems, Final: !r.plan.ChangesRules()}
	}
	return nil
}
