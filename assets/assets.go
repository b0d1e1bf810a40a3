// Package assets holds the files that are part of flanwatch: schemas, scenarios, recordings.
package assets

import _ "embed"

// CheckSchema is the JSON Schema of `flanwatch check -o json`.
//
//go:embed check.schema.json
var CheckSchema []byte
