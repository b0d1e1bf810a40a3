package nft

import (
	"errors"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// Exist tells of each chain whether it is there, with one short question each.
func (b *Browser) Exist(ids []flannel.ChainID) ([]bool, error) {
	out := make([]bool, len(ids))
	for i, id := range ids {
		family, table := address(id)
		_, err := b.reader.socket.ask(request(unix.NFT_MSG_GETCHAIN, 0, family,
			stringAttr{unix.NFTA_CHAIN_TABLE, table}, stringAttr{unix.NFTA_CHAIN_NAME, id.Name}))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			c := newChain(id, 0)
			return nil, c.fail(err)
		}
		out[i] = err == nil
	}
	return out, nil
}
