package lab_test

import (
	"strings"
	"testing"

	"flanwatch/watcher/lab"
	"flanwatch/watcher/lab/labtest"
)

// Every iptables-nft from 1.8.7 on finds the rules that the lab wrote, by the text in which another version saves them.
func TestEveryIptablesFindsTheRulesOfTheLab(t *testing.T) {
	labtest.RequireRoot(t)
	labtest.RequireTools(t, "iptables-nft-save")
	s, err := lab.LoadScenario("healthy")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	for release, version := range map[string]string{"bullseye": "1.8.7", "bookworm": "1.8.9", "trixie": "1.8.11"} {
		t.Run(version, func(t *testing.T) {
			root := labtest.IptablesRoot(t, release)
			found := 0
			for _, tool := range []string{"iptables-nft", "ip6tables-nft"} {
				saved, err := l.Node.Run(tool + "-save")
				if err != nil {
					t.Fatal(err)
				}
				table := ""
				for line := range strings.Lines(saved) {
					line = strings.TrimSpace(line)
					if name, ok := strings.CutPrefix(line, "*"); ok {
						table = name
					}
					spec, isRule := strings.CutPrefix(line, "-A ")
					if !isRule || !strings.Contains(spec, "flanneld") {
						continue
					}
					script := "chroot " + root + " " + tool + " -t " + table + " -C " + spec
					if out, err := l.Node.Run("sh", "-c", script); err != nil {
						t.Errorf("%s: %v: %s", script, err, out)
					}
					found++
				}
			}
			if found != 20 {
				t.Errorf("looked for %d rules", found)
			}
		})
	}
}
