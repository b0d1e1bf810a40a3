package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// legacy changes the tables of iptables-legacy: it takes the real lock, looks again, and lets that backend's own program
// write one table after the other. A process that survives ours stands by to take back a half.
func (r *run) legacy(ctx context.Context, tables []flannel.TableID) error {
	wait := r.LockWait
	if wait == 0 {
		wait = lockWait
	}
	lock, err := TakeLock(r.Root, wait)
	if err != nil {
		return err
	}
	r.lock = lock
	if err := r.reread(true); err != nil {
		return err
	}
	if err := r.Store.Put(r.receipt); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	for _, t := range tables { // where the program has a dry run, all tables are tried before the first is written
		if err := r.Tools.restore(ctx, t, r.plan.RestoreText(t), lock, "--test"); err != nil {
			return &RefusedError{[]remediate.Refusal{{
				Name: "dry-run", Why: fmt.Sprintf("The dry run of table %s %s failed: %v.", t.Family, t.Name, err),
				Change: "update iptables, or do it by hand",
			}}}
		}
	}
	if len(tables) > 1 || r.touchesNft() {
		if r.rescue, err = r.arm(); err != nil {
			return err
		}
	}
	for i, t := range tables {
		r.moment("transaction", i)
		r.begun = true
		if err := r.Tools.restore(ctx, t, r.plan.RestoreText(t), lock); err != nil {
			return err
		}
	}
	r.rescue.legacyDone()
	return nil
}

// restore runs the restore program of a table while we hold the real lock: it gets a lock file of its own, and inherits the
// real one, so that the lock is held to its end even if we die.
func (t *Tools) restore(ctx context.Context, table flannel.TableID, text string, lock *Lock, args ...string) error {
	tool, err := t.Find(table.Backend, table.Family, restore)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("xtables.lock", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make a private lock file: %w", err)
	}
	private := os.NewFile(uintptr(fd), "xtables.lock")
	defer private.Close()
	// A program that does not know the variable waits for the lock that we hold: not for long.
	args = append([]string{"--noflush", "--wait=2"}, args...)
	if _, err := t.run(ctx, tool, args, text, []string{"XTABLES_LOCKFILE=/proc/self/fd/4"}, lock.file, private); err != nil {
		return fmt.Errorf("write table %s: %w", table, err)
	}
	return nil
}

// revertLegacy takes back what was done to legacy tables, whichever of them were written: a table that is not as the plan
// leaves it is either as it was before, or somebody else's by now. It needs the lock, or for nobody else to hold it.
func revertLegacy(t *Tools, r remediate.Receipt) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, table := range legacyTables(r) {
		errs = append(errs, revertTable(ctx, t, r, table))
	}
	return errors.Join(errs...)
}

func legacyTables(r remediate.Receipt) []flannel.TableID {
	return remediate.Plan{Edits: r.Edits}.TablesOf(flannel.IptablesLegacy)
}

// revertTable undoes the part of a receipt in one table.
func revertTable(ctx context.Context, t *Tools, r remediate.Receipt, table flannel.TableID) error {
	tool, err := t.Find(table.Backend, table.Family, save)
	if err != nil {
		return err
	}
	text, err := t.run(ctx, tool, []string{"-t", table.Name}, "", nil)
	if err != nil {
		return fmt.Errorf("read table %s: %w", table, err)
	}
	rules, err := flannel.ParseSave(text, table.Backend, table.Family)
	if err != nil {
		return fmt.Errorf("read table %s: %w", table, err)
	}
	var f remediate.Facts
	f.Facts.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{
		table.Backend: flannel.Know(*rules, tool.Path, flannel.Time{}),
	}
	part := remediate.Receipt{ID: r.ID, Kind: r.Kind, Result: remediate.ResultStarted, Edits: remediate.Plan{Edits: r.Edits}.Of(table)}
	back, refused := remediate.Undo(part, f, remediate.Choice{})
	if len(refused) > 0 || back.Empty() {
		return nil // not as the plan leaves it
	}
	lock, err := os.Open(os.DevNull) // whoever calls us holds the real one
	if err != nil {
		return err
	}
	defer lock.Close()
	return t.restore(ctx, table, back.RestoreText(table), &Lock{lock})
}
