// Package assets holds the files that come with the program.
package assets

import "embed"

// Scenarios are the stories of the lab, in the folder "scenarios".
//
//go:embed scenarios
var Scenarios embed.FS
