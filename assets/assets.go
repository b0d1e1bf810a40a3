// Package assets holds the files that are part of flanwatch: schemas, scenarios, recordings.
package assets

import _ "embed"

// CheckSchema is the JSON Schema of `flanwatch check -o json`.
//
//go:embed check.schema.json
var CheckSchema []byte

// DoctorSchema is the JSON Schema of `flanwatch doctor -o json`.
//
//go:embed doctor.schema.json
var DoctorSchema []byte

// PlanSchema is the JSON Schema of `--dry-run -o json` of every remedy.
//
//go:embed plan.schema.json
var PlanSchema []byte

// HistorySchema is the JSON Schema of `flanwatch history -o json`.
//
//go:embed history.schema.json
var HistorySchema []byte
