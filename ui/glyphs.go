package ui

import (
	"math"
	"strings"
)

// Symbols of a state. Each differs from the others by shape, so that colour is never the only sign.
const (
	signGood    = "●"
	signWarn    = "▲"
	signBad     = "✗"
	signDone    = "✓"
	signNone    = "○"
	signUnknown = "?"
	signPaused  = "‖"
)

// ticks are the heights of a sparkline. The lowest is kept for zero: whatever is more than nothing stands above it. The
// full block is left out, so that the graphs of two rows do not run together.
var (
	ticks      = []rune("▁▂▃▄▅▆▇")
	asciiTicks = []rune(" .:-=+*")
)

// sparkline draws values, oldest first, one column each, scaled to the largest. NaN is a gap, which is not zero; it is
// left blank before from, where nobody watched yet.
func sparkline(values []float64, from int, ascii bool) string {
	heights, gap := ticks, '·'
	if ascii {
		heights, gap = asciiTicks, '?'
	}
	top := scaleOf(values)
	var b strings.Builder
	for i, v := range values {
		switch {
		case math.IsNaN(v) && i < from:
			b.WriteByte(' ')
		case math.IsNaN(v):
			b.WriteRune(gap)
		case v <= 0:
			b.WriteRune(heights[0])
		default:
			h := int(math.Round(v / top * float64(len(heights)-1)))
			b.WriteRune(heights[min(max(h, 1), len(heights)-1)])
		}
	}
	return b.String()
}

// scaleOf gives a round number that no value exceeds, 0 if none is above 0. Round ones change seldom, so that the bars
// stand still while only the newest value varies.
func scaleOf(values []float64) float64 {
	top := 0.0
	for _, v := range values {
		if v > top { // false for NaN
			top = v
		}
	}
	if top == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	for _, step := range []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if top <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}

// asciiOf says what stands for a glyph where a terminal has nothing but ASCII. Each takes one column, like the original.
var asciiOf = map[rune]byte{
	'●': 'o', '▲': '!', '✗': 'X', '✓': '*', '○': '-', '‖': '"', '×': 'x', '▸': '>', '…': '~', '·': '.', '–': '-', '−': '-',
	'→': '>', '←': '<', '↑': '^', '↓': 'v', '↵': '/', '━': '=', '─': '-', '│': '|', '▌': '_', '╵': '\'', '≥': '>', '█': '#', '░': '.',
	'╭': '+', '╮': '+', '╰': '+', '╯': '+', '├': '+', '┤': '+', '┬': '+', '┴': '+', '┼': '+',
	'▁': ' ', '▂': '.', '▃': ':', '▄': '-', '▅': '=', '▆': '+', '▇': '*',
	'¹': '1', '²': '2', '³': '3', '⁴': '4',
}

// toASCII replaces every rune that is not ASCII, column by column.
func toASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 {
			return r
		}
		if a, ok := asciiOf[r]; ok {
			return rune(a)
		}
		return '?'
	}, s)
}
