package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"flanwatch/conntrack"
	"flanwatch/remediate"
	"flanwatch/remediate/apply"
)

func newUnstick(o *options, std Streams) *cobra.Command {
	var words []string
	cmd := o.remedy(std, "unstick", "Drop connections that keep a wrong translation",
		`unstick deletes exactly the listed entries of connection tracking, each looked at once more before, so that the next packet
of each connection is translated anew. It touches no other entry. It cannot be undone: a TCP connection that was answered is
cut off, and its ends see a reset or a timeout. The receipt tells what was deleted.`,
		func(ctx context.Context, r *remedy, _ []string) error {
			kinds, err := unstickKinds(words)
			if err != nil {
				return exit(ExitUsage, err)
			}
			r.flows = true
			return r.run(ctx, func(*apply.Store) (apply.Maker, error) {
				return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
					return remediate.Unstick(f, remediate.Choice{Kinds: kinds, Override: r.override})
				}, nil
			})
		})
	cmd.Example = "  flanwatch unstick --dry-run\n  flanwatch unstick --plan 0123456789abcdef"
	cmd.Flags().StringSliceVar(&words, "kind", []string{"bare", "translated", "stale"}, "only connections of these `kinds`")
	return cmd
}

// unstickKinds gives the kinds asked for.
func unstickKinds(words []string) ([]conntrack.Kind, error) {
	var out []conntrack.Kind
	for _, word := range words {
		k := conntrack.Kind(word)
		if !conntrack.CanUnstick(k) {
			return nil, fmt.Errorf("--kind %s: want bare, translated or stale", word)
		}
		out = append(out, k)
	}
	return out, nil
}

// sayFates tells what became of connections.
func (r *remedy) sayFates(list []remediate.Gone) {
	if len(list) == 0 {
		return
	}
	n := remediate.Fates(list)
	r.say("deleted %d, gone already %d, left alone %d; this cannot be undone", n[remediate.FateDeleted], n[remediate.FateGone], n[remediate.FateLeft])
}

// offerUnstick says, after rules were put back, which connections keep what the gap made of them.
func (r *remedy) offerUnstick(s *sight) {
	s.survey()
	survey, known := s.state.View(s.watcher.Now()).Table.Flows.Get()
	n := survey.Kinds[conntrack.Bare]
	switch {
	case !known:
		r.say("connections that began meanwhile could not be looked at; flanwatch unstick drops those that stay without source NAT")
	case n.Flows > 0:
		r.say("%d connections that began meanwhile stay without source NAT until they end; flanwatch unstick drops them, so that they\n"+
			"begin anew with it (this cannot be undone, and cuts off the %d that are answered)", n.Flows, n.Replied)
	}
}
