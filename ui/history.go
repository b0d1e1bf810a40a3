package ui

import (
	"fmt"
	"strings"

	"flanwatch/remediate"
)

func receiptIDs(list []remediate.Receipt) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].ID
	}
	return out
}

// selectedReceipt is the receipt that has the keys, nil if there is none.
func (s *screen) selectedReceipt() *remediate.Receipt {
	if i := s.receipt.index(receiptIDs(s.receipts)); i >= 0 {
		return &s.receipts[i]
	}
	return nil
}

var resultRoles = map[remediate.Result]role{
	remediate.ResultVerified: roleGood, remediate.ResultUndone: roleDim, remediate.ResultFailed: roleWarn,
}

// historyPage lists what was carried out here, newest first, over what is known of the selected one:
//
//	╭─ Carried out here 3 ──────────────────────────────────────── enter takes it back ─╮
//	│  TIME                 PLAN     RESULT      BY     WHAT                             │
//	│▸ 2026-11-30 12:04:35  reapply  verified    root   Re-apply 6 rules to v4 nat FLA… │
func (s *screen) historyPage(body int) []string {
	b := box{title: fmt.Sprintf("Carried out here %d", len(s.receipts)), info: "enter takes it back", focused: true}
	if len(s.receipts) == 0 {
		b.info = ""
		s.say(&b, "", "", roleText)
		s.say(&b, "", "No plan was carried out here, as far as the state directory tells.", roleText)
		return s.frame(b, body-2, true, false)
	}
	var about box
	if r := s.selectedReceipt(); r != nil {
		s.receiptFacts(&about, r)
	}
	rows := max(body-2-len(about.lines)-1, 2)
	at := s.receipt.index(receiptIDs(s.receipts))
	from := window(len(s.receipts), rows-1, at)
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, left("TIME", 21)+left("PLAN", 9)+left("RESULT", 12)+left("BY", 9)+"WHAT").full())
	for i := from; i < min(from+rows-1, len(s.receipts)); i++ {
		b.lines = append(b.lines, s.receiptLine(&s.receipts[i], i == at))
	}
	for len(b.lines) < rows {
		b.lines = append(b.lines, s.innerLine(groundPlain).full())
	}
	b.lines = append(b.lines, s.innerLine(groundPlain).full())
	b.lines = append(b.lines, about.lines...)
	return s.frame(b, body-2, true, false)
}

func (s *screen) receiptLine(r *remediate.Receipt, selected bool) string {
	l := s.innerLine(groundPlain)
	if selected {
		l.ground = groundSelect
		l.put(roleFocus, "▸ ")
	} else {
		l.gap(2)
	}
	as, known := resultRoles[r.Result]
	if !known {
		as = roleBad
	}
	l.put(roleDim, left(r.Time.In(s.loc).Format("2006-01-02 15:04:05"), 21)).put(roleText, left(clean(string(r.Kind)), 9))
	return l.put(as, left(clean(string(r.Result)), 12)).put(roleWho, left(userText(*r), 8)+" ").put(roleStrong, cut(clean(r.Title), s.inner()-l.w-1)).full()
}

func (s *screen) receiptFacts(b *box, r *remediate.Receipt) {
	s.fact(b, "what", roleStrong, r.Title)
	s.fact(b, "receipt", roleText, r.ID)
	s.fact(b, "why", roleWarn, r.Why)
	s.fact(b, "takes back", roleText, r.Undoes)
	s.fact(b, "backup", roleText, r.Backup)
	s.fact(b, "overridden", roleWarn, strings.Join(r.Judged, ", "))
}

func (s *screen) historyCopy() string {
	r := s.selectedReceipt()
	if r == nil {
		return ""
	}
	var b box
	s.narrow(160).receiptFacts(&b, r)
	return textOf(b)
}
