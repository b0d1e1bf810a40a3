package assets

import _ "embed"

// ExportSchema is the JSON Schema of `flanwatch export -o json`.
//
//go:embed export.schema.json
var ExportSchema []byte
