package nfnl

import (
	"bytes"
	"compress/gzip"
	"errors"
	"testing"
	"testing/fstest"
)

const (
	head   = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
	route  = "0000000000000000 0   0          00000000 0        0        0     2        0        4026\n"
	filter = "0000000000000000 12  0          00000000 0        0        0     2        0        4027\n"
	user   = "0000000000000000 12  4711       00000000 0        0        0     2        0        4028\n"
)

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheKernelIsNotAskedForWhatItWouldHaveToLoad(t *testing.T) {
	const symbols = "0000000000000000 T start\n0000000000000000 t nf_tables_newrule\n0000000000000000 t ctnetlink_dump_table\n"
	ours := packed(t, "# CONFIG_NF_TABLES_ARP is not set\nCONFIG_NF_TABLES=y\nCONFIG_NF_CT_NETLINK=y\n")
	modules := packed(t, "CONFIG_NF_TABLES=m\nCONFIG_NF_CT_NETLINK=m\n")
	for _, s := range []Subsystem{Tables, Conntrack} {
		for _, c := range []struct {
			name                     string
			sockets, config, symbols string
			module                   bool
			want                     string
		}{
			{"as a module", head + route + filter, "", "", true, ""},
			{"built in, says the configuration", head + route + filter, ours, "", false, ""},
			{"a module that is not loaded", head + route + filter, modules, symbols, false, s.name + ": not present"},
			{"built in, say the symbols", head + route + filter, "", symbols, false, ""},
			{"a configuration that is cut short is not believed", head + route + filter, modules[:len(modules)/2], symbols, false, ""},
			{"a configuration that is none is not believed", head + route + filter, "text", symbols, false, ""},
			{"not there", head + route + filter, "", "0000000000000000 T start\n", false, s.name + ": not present"},
			{"no nfnetlink", head + route, ours, symbols, true, "nfnetlink: not present"},
			{"only a socket of a user", head + route + user, ours, symbols, true, "nfnetlink: not present"},
		} {
			t.Run(s.name+" "+c.name, func(t *testing.T) {
				root := fstest.MapFS{}
				for path, text := range map[string]string{
					"proc/thread-self/net/netlink": c.sockets, "proc/config.gz": c.config, "proc/kallsyms": c.symbols,
				} {
					if text != "" {
						root[path] = &fstest.MapFile{Data: []byte(text)}
					}
				}
				if c.module {
					root["sys/module/"+s.module+"/refcnt"] = &fstest.MapFile{Data: []byte("1")}
				}
				err := Present(root, s)
				if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrNotPresent) || err.Error() != c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		}
	}
	if err := Present(fstest.MapFS{}, Tables); err == nil || errors.Is(err, ErrNotPresent) {
		t.Errorf("without /proc nothing can be told: %v", err)
	}
	sockets := fstest.MapFS{"proc/thread-self/net/netlink": {Data: []byte(head + filter)}}
	if err := Present(sockets, Tables); err == nil || errors.Is(err, ErrNotPresent) {
		t.Errorf("without configuration and symbols nothing can be told: %v", err)
	}
}
