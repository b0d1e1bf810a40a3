package assets

import "embed"

// Recordings are journals of the lab's stories, compressed, in the folder "recordings": NAME.jsonl.gz. `make recordings`
// makes them anew.
//
//go:embed recordings
var Recordings embed.FS
