package ui

import (
	"math"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

func TestNumbersHaveThreeDigitsAndFiveColumns(t *testing.T) {
	for v, want := range map[float64]string{
		0: "   0 ", 0.01: "<0.1 ", 0.5: " 0.5 ", 9.94: " 9.9 ", 9.96: "  10 ", 12: "  12 ", 999.4: " 999 ", 999.6: "1.00k",
		1234: "1.23k", 18400: "18.4k", 99949: "99.9k", 99960: " 100k", 999499: " 999k", 999501: "1.00M", 9.21e9: "9.21G", 3e20: " 300E",
		math.NaN(): "   – ",
	} {
		if got := scaled(v); got != want {
			t.Errorf("scaled(%v) = %q, want %q", v, got, want)
		}
	}
	for v := 0.001; v < 1e21; v *= 1.0137 {
		if got := scaled(v); width(got) != 5 {
			t.Fatalf("scaled(%v) = %q", v, got)
		}
	}
	if got := count(999); got != " 999 " {
		t.Errorf("count(999) = %q", got)
	}
}

func TestDurationsReadLikeSpeech(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 ms", 84 * time.Millisecond: "84 ms", 4286 * time.Millisecond: "4.2 s", 59 * time.Second: "59 s",
		192 * time.Second: "3 min 12 s", 125 * time.Minute: "2 h 05 min", 76 * time.Hour: "3 d 4 h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestNatChainsCountConnectionsAndFilterChainsPackets(t *testing.T) {
	for _, c := range []struct {
		id   flannel.ChainID
		want string
	}{
		{flannel.MasqChain(flannel.IptablesNft, flannel.IPv4), "c"},
		{flannel.MasqChain(flannel.Nftables, flannel.IPv6), "c"},
		{flannel.ForwardChain(flannel.IptablesLegacy, flannel.IPv4), "p"},
		{flannel.ForwardChain(flannel.Nftables, flannel.IPv4), "p"},
	} {
		if got := unitOf(c.id); got != c.want {
			t.Errorf("%v counts %q, want %q", c.id, got, c.want)
		}
	}
}

func TestSparklineTellsZeroGapAndUnwatchedApart(t *testing.T) {
	nan := math.NaN()
	values := []float64{nan, nan, nan, 0, 1, 50, 100}
	if got, want := sparkline(values, 2, false), "  ·▁▂▄▇"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := sparkline(values, 2, true), "  ? .-*"; got != want {
		t.Errorf("in ASCII %q, want %q", got, want)
	}
	if got, want := sparkline([]float64{0, 0}, 0, false), "▁▁"; got != want {
		t.Errorf("all zero %q, want %q", got, want)
	}
}

func TestASCIIPicturesHoldNothingElse(t *testing.T) {
	for _, sc := range scenes {
		m := still(t, sc.view(), Options{ASCII: true})
		if sc.set != nil {
			sc.set(m)
		}
		picture := m.at(100, 30)
		checkFit(t, sc.name, picture, 100, 30)
		if !isASCII(picture) {
			t.Errorf("%s: not ASCII:\n%s", sc.name, picture)
		}
		if strings.Contains(plain(picture), "?") && sc.name == "healthy" && strings.Count(plain(picture), "?") > 1 {
			t.Errorf("a glyph has no ASCII form:\n%s", plain(picture))
		}
	}
}

func TestTheScaleIsARoundNumberThatNothingExceeds(t *testing.T) {
	for top, want := range map[float64]float64{0: 0, 0.7: 0.8, 1: 1, 41: 50, 53: 60, 99: 100, 100: 100, 18400: 20000} {
		if got := scaleOf([]float64{math.NaN(), top, top / 3}); math.Abs(got-want) > want/1e9 {
			t.Errorf("scale of %v is %v, want %v", top, got, want)
		}
	}
	for v := 1e-6; v < 1e12; v *= 1.037 {
		if got := scaleOf([]float64{v}); got < v || got > 1.34*v {
			t.Fatalf("scale of %v is %v", v, got)
		}
	}
}

func TestWrapLosesNothing(t *testing.T) {
	text := "-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully"
	for w := 5; w < 120; w++ {
		parts := wrap(text, w)
		if strings.ReplaceAll(strings.Join(parts, ""), " ", "") != strings.ReplaceAll(text, " ", "") {
			t.Fatalf("at %d: %q", w, parts)
		}
		for _, p := range parts {
			if width(p) > w {
				t.Fatalf("at %d: %q", w, p)
			}
		}
	}
}
