package assets

import _ "embed"

// FlowsSchema is the JSON Schema of `flanwatch flows -o json`.
//
//go:embed flows.schema.json
var FlowsSchema []byte
