package watcher

import (
	"errors"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/nft"
)

// retry is how often a backend that is not there, or may not be read, is tried again.
const retry = 5 * time.Second

const nftSource = "nf_tables"

// nftRules reads both nf_tables backends.
type nftRules struct {
	open   func() (*nft.Reader, error) // in the watched namespace
	reader *nft.Reader
	tried  flannel.Time
	// shows is told of the generation that a reading shows, before it is handed out, and tells whether it took time to hand
	// out something else first. It may be nil.
	shows func(generation uint32) bool
}

// read hands out one reading of each nf_tables backend, or why there is none.
func (r *nftRules) read(now func() flannel.Time, sink Sink) {
	at := now()
	if r.reader == nil {
		if !r.tried.IsZero() && at.Sub(r.tried) < retry {
			return
		}
		r.tried = at
		reader, err := r.open()
		if err != nil {
			r.miss(err, at, sink)
			return
		}
		r.reader = reader
	}
	ours, native, err := r.reader.Read()
	if err != nil {
		r.miss(err, now(), sink)
		return
	}
	at = now() // rates are by the time of receipt
	if r.shows != nil && r.shows(ours.Generation) {
		at = now()
	}
	observeRules(flannel.Know(*ours, nftSource, at), flannel.IptablesNft, sink)
	observeRules(flannel.Know(*native, nftSource, at), flannel.Nftables, sink)
}

func (r *nftRules) miss(err error, at flannel.Time, sink Sink) {
	state, why := flannel.Unreadable, err.Error()
	if errors.Is(err, nft.ErrNotPresent) {
		state, why = flannel.Absent, "the kernel has no nf_tables loaded"
	}
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
		observeRules(flannel.Miss[flannel.Ruleset](state, why, nftSource, at), b, sink)
	}
}

func observeRules(reading flannel.Reading[flannel.Ruleset], b flannel.Backend, sink Sink) {
	sink(&incident.Observation{Time: reading.At, Rules: &incident.RulesRead{Backend: b, Ruleset: reading}})
}
