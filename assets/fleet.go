package assets

import _ "embed"

// FleetSchema is the JSON Schema of `flanwatch fleet -o json`.
//
//go:embed fleet.schema.json
var FleetSchema []byte
