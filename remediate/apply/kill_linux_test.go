package apply

import (
	"context"
	"fmt"
	"os"
	"time"
)

// purgeHere is a program of its own that purges the namespace that it runs in, to be killed on the way.
func purgeHere(state string, live bool) int {
	e, err := openEyes()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	e.live = live
	f, err := e.facts()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p, _ := purge(f)
	a := &Applier{
		Facts: e.facts, Rules: e.rules, Store: NewStore(state), Root: "/", LockWait: 5 * time.Second, Rescue: Command("rescue"),
	}
	a.Progress = func(step string) {
		if step == "apply" {
			fmt.Println(step)
		}
	}
	if _, err := a.Apply(context.Background(), p.ID, purge); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
