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
	Path    string   // inside the root
	Words   []string // before its arguments: what a program of many names is to be
	Version string   // "1.8.9"
	Backend flannel.Backend
}

// Tools are the programs of iptables that a node has, by name: "ip6tables-legacy-restore".
type Tools struct {
	root  string // "" where that is our own
	found map[string]Tool
}

// FindTools looks for the programs below the root and asks each for its backend and version.
func FindTools(ctx context.Context, root string) *Tools {
	t := newTools(root)
	for _, f := range flannel.Families {
		for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
			for _, verb := range []string{check, save, restore} {
				t.look(ctx, root, b, f, verb)
			}
		}
	}
	return t
}

func newTools(root string) *Tools {
	t := &Tools{found: map[string]Tool{}}
	if !ownRoot(root) {
		t.root = root
	}
	return t
}

// ownRoot tells whether a root is the one that our own programs run in.
func ownRoot(root string) bool {
	a, err1 := os.Stat("/")
	b, err2 := os.Stat(root)
	return root == "/" || err1 == nil && err2 == nil && os.SameFile(a, b)
}

// look finds one program: by the name that tells its backend, else by the plain name if the program says the backend, else
// as one of the names of the program that is all of them.
func (t *Tools) look(ctx context.Context, root string, b flannel.Backend, f flannel.Family, verb string) {
	name := remediate.Program(b, f) + verb
	plain := remediate.Program(0, f)
	plain = strings.TrimSuffix(plain, flannel.Backend(0).String()) + verb
	for _, n := range []string{name, plain} {
		if t.lookFor(ctx, root, n, nil, b, name) {
			return
		}
	}
	for _, n := range multi[b] {
		if t.lookFor(ctx, root, n, []string{plain}, b, name) {
			return
		}
	}
}

// multi are the programs that are all the programs of a backend, by the word that follows: k3s and rke2 unpack these.
var multi = map[flannel.Backend][]string{
	flannel.IptablesNft:    {"xtables-nft-multi"},
	flannel.IptablesLegacy: {"xtables-legacy-multi", "xtables-multi"},
}

// lookFor takes the first file of that name which says that it is of the backend.
func (t *Tools) lookFor(ctx context.Context, root, file string, words []string, b flannel.Backend, name string) bool {
	for _, folder := range toolFolders {
		matches, _ := filepath.Glob(filepath.Join(root, folder, file)) // the pattern is well formed
		for _, m := range slices.Backward(matches) {
			tool := Tool{Path: "/" + strings.TrimPrefix(strings.TrimPrefix(m, filepath.Clean(root)), "/"), Words: words}
			if t.ask(ctx, &tool) && tool.Backend == b {
				t.found[name] = tool
				return true
			}
		}
	}
	return false
}

// ask reads "iptables-restore v1.8.9 (legacy)". Before 1.8 there was only legacy, and no word of it.
func (t *Tools) ask(ctx context.Context, tool *Tool) bool {
	out, err := t.run(ctx, *tool, []string{"--version"}, "", nil)
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(strings.TrimSpace(out), " v")
	version, kind, named := strings.Cut(rest, " ")
	tool.Version = version
	switch {
	case !ok || len(version) > 32:
		return false
	case strings.HasPrefix(kind, "(nf_tables)"):
		tool.Backend = flannel.IptablesNft
		return true
	case !named, strings.HasPrefix(kind, "(legacy)"):
		tool.Backend = flannel.IptablesLegacy
		return true
	}
	return false
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
func (t *Tools) run(ctx context.Context, tool Tool, args []string, input string, env []string, files ...*os.File) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool.Path, slices.Concat(tool.Words, args)...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C"}, env...)
	cmd.Dir, cmd.Stdin, cmd.ExtraFiles, cmd.WaitDelay = "/", strings.NewReader(input), files, time.Second
	if t.root != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: t.root}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if said := strings.TrimSpace(errs.String()); said != "" {
			return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(tool.Path), err, flannel.Printable(said))
		}
		return out.String(), fmt.Errorf("%s: %w", filepath.Base(tool.Path), err)
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
			out, err := t.run(ctx, tool, []string{"-c"}, "", nil)
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
		text, err := t.run(ctx, tool, nil, "", nil)
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
