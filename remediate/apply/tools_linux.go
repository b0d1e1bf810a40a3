package apply

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// What a program of iptables does, as the end of its name.
const (
	check   = ""
	save    = "-save"
	restore = "-restore"
)

// toolFolders are where programs are looked for, whatever PATH says; the last ones are what k3s and rke2 unpack.
var toolFolders = []string{
	"usr/sbin", "sbin", "usr/bin", "bin", "usr/local/sbin", "usr/local/bin",
	"var/lib/rancher/k3s/data/current/bin/aux", "var/lib/rancher/k3s/data/*/bin/aux",
	"var/lib/rancher/rke2/data/current/bin/aux", "var/lib/rancher/rke2/data/*/bin/aux", "var/lib/rancher/rke2/data/*/bin",
}

// patience bounds the run of one program.
const patience = 30 * time.Second

// Tool is one program of iptables.
type Tool struct {
	Path    string // inside the root
	Version string // "1.8.9"
	Backend flannel.Backend
}

// Tools are the programs of iptables that a node has, by name: "ip6tables-legacy-restore".
type Tools struct {
	root  string // "" where that is our own
	found map[string]Tool
}

// FindTools looks for the programs below the root and asks each for its backend and version.
func FindTools(ctx context.Context, root string) *Tools {
	t := &Tools{found: map[string]Tool{}}
	if !ownRoot(root) {
		t.root = root
	}
	for _, f := range flannel.Families {
		for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
			for _, verb := range []string{check, save, restore} {
				t.look(ctx, root, b, f, verb)
			}
		}
	}
	return t
}

// ownRoot tells whether a root is the one that our own programs run in.
func ownRoot(root string) bool {
	a, err1 := os.Stat("/")
	b, err2 := os.Stat(root)
	return root == "/" || err1 == nil && err2 == nil && os.SameFile(a, b)
}

// look finds one program: by the name that tells its backend, else by the plain name if the program says the backend.
func (t *Tools) look(ctx context.Context, root string, b flannel.Backend, f flannel.Family, verb string) {
	name := remediate.Program(b, f) + verb
	plain := remediate.Program(0, f)
	plain = strings.TrimSuffix(plain, flannel.Backend(0).String()) + verb
	for _, n := range []string{name, plain} {
		for _, folder := range toolFolders {
			matches, _ := filepath.Glob(filepath.Join(root, folder, n)) // the pattern is well formed
			for _, m := range slices.Backward(matches) {
				path := "/" + strings.TrimPrefix(strings.TrimPrefix(m, filepath.Clean(root)), "/")
				version, backend, ok := t.ask(ctx, path)
				if ok && backend == b {
					t.found[name] = Tool{Path: path, Version: version, Backend: backend}
					return
				}
			}
		}
	}
}

// ask reads "iptables-restore v1.8.9 (legacy)". Before 1.8 there was only legacy, and no word of it.
func (t *Tools) ask(ctx context.Context, path string) (string, flannel.Backend, bool) {
	out, err := t.run(ctx, path, []string{"--version"}, "", nil)
	if err != nil {
		return "", 0, false
	}
	_, rest, ok := strings.Cut(strings.TrimSpace(out), " v")
	version, kind, named := strings.Cut(rest, " ")
	switch {
	case !ok || len(version) > 32:
		return "", 0, false
	case strings.HasPrefix(kind, "(nf_tables)"):
		return version, flannel.IptablesNft, true
	case !named, strings.HasPrefix(kind, "(legacy)"):
		return version, flannel.IptablesLegacy, true
	}
	return "", 0, false
}

// Find gives the program of a backend and family that does something.
func (t *Tools) Find(b flannel.Backend, f flannel.Family, verb string) (Tool, error) {
	name := remediate.Program(b, f) + verb
	tool, ok := t.found[name]
	if !ok {
		return tool, fmt.Errorf("find %s: not in %s", name, strings.Join(toolFolders[:4], ", ")+" or what k3s and rke2 unpack")
	}
	return tool, nil
}

// run runs a program with nothing of our environment, and the files as its descriptors 3, 4, ….
func (t *Tools) run(ctx context.Context, path string, args []string, input string, env []string, files ...*os.File) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C"}, env...)
	cmd.Dir, cmd.Stdin, cmd.ExtraFiles, cmd.WaitDelay = "/", strings.NewReader(input), files, time.Second
	if t.root != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: t.root}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if said := strings.TrimSpace(errs.String()); said != "" {
			return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(path), err, flannel.Printable(said))
		}
		return out.String(), fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return out.String(), nil
}

// saveAll gives the whole ruleset as iptables-save of both backends and families prints it, as far as there are programs.
// The legacy ones are left out where the kernel has no legacy tables, since asking would load them.
func (t *Tools) saveAll(ctx context.Context, legacy bool) (string, error) {
	var b strings.Builder
	for _, backend := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		for _, f := range flannel.Families {
			if backend == flannel.IptablesLegacy && !legacy && !hasLegacy(f) {
				continue
			}
			tool, err := t.Find(backend, f, save)
			if err != nil {
				fmt.Fprintf(&b, "# %v\n", err)
				continue
			}
			out, err := t.run(ctx, tool.Path, []string{"-c"}, "", nil)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "# %s%s of %s\n%s", remediate.Program(backend, f), save, tool.Version, out)
		}
	}
	return b.String(), nil
}

// hasLegacy tells whether the kernel has legacy tables of a family in this network namespace.
func hasLegacy(f flannel.Family) bool {
	name := "ip_tables_names"
	if f == flannel.IPv6 {
		name = "ip6_tables_names"
	}
	names, err := os.ReadFile("/proc/thread-self/net/" + name)
	return err == nil && len(bytes.TrimSpace(names)) > 0
}

// Incompatible asks iptables-nft which tables it refuses to work on.
func (t *Tools) Incompatible(ctx context.Context) map[flannel.TableID]string {
	out := map[flannel.TableID]string{}
	for _, f := range flannel.Families {
		tool, err := t.Find(flannel.IptablesNft, f, save)
		if err != nil {
			continue
		}
		text, err := t.run(ctx, tool.Path, nil, "", nil)
		if err != nil {
			text += err.Error()
		}
		for line := range strings.Lines(text) {
			// # Table `nat' is incompatible, use 'nft' tool.
			_, rest, ok := strings.Cut(line, "able `")
			name, said, ok2 := strings.Cut(rest, "'")
			if ok && ok2 && strings.Contains(said, "incompatible") {
				out[flannel.TableID{Backend: flannel.IptablesNft, Family: f, Name: name}] = strings.TrimSpace(strings.TrimLeft(line, "# "))
			}
		}
	}
	return out
}
