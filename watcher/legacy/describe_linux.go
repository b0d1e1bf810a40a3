package legacy

import (
	"fmt"

	"flanwatch/flannel"
)

// describe words a match or target that is not understood.
func describe(_ flannel.Family, x ext) string {
	return fmt.Sprintf("%s --revision %d --data 0x%x", x.name(), x.revision(), x.data())
}
