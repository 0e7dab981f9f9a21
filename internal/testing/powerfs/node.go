//go:build powerloss

package powerfs

import (
	"maps"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or a folder.
type node struct {
	number  uint64
	mode    uint32
	changed time.Time

	now, durable content          // of a file
	fresh        map[int]bool     // pages of now that durable does not share
	names        map[string]*node // of a folder; nil for a file
	durableNames map[string]*node // the same
}

// content is the bytes of a file. A nil page has zeros.
type content struct {
	pages []*page
	size  int64
}

const pageSize = 1 << 14

type page [pageSize]byte

func (n *node) sync() {
	n.durable = content{slices.Clone(n.now.pages), n.now.size}
	clear(n.fresh)
}

func (n *node) restore() {
	n.now = content{slices.Clone(n.durable.pages), n.durable.size}
	clear(n.fresh)
	n.names = maps.Clone(n.durableNames)
}

// writable returns a page that may be changed without a change of the durable content.
func (n *node) writable(i int) *page {
	for len(n.now.pages) <= i {
		n.now.pages = append(n.now.pages, nil)
	}
	if !n.fresh[i] {
		copied := new(page)
		if old := n.now.pages[i]; old != nil {
			*copied = *old
		}
		n.now.pages[i], n.fresh[i] = copied, true
	}
	return n.now.pages[i]
}

func (n *node) write(data []byte, at int64) {
	n.changed = time.Now()
	n.now.size = max(n.now.size, at+int64(len(data)))
	for len(data) > 0 {
		written := copy(n.writable(int(at / pageSize))[at%pageSize:], data)
		data, at = data[written:], at+int64(written)
	}
}

func (n *node) read(buffer []byte, at int64) []byte {
	end := min(n.now.size, at+int64(len(buffer)))
	read := buffer[:0]
	for at < end {
		p := new(page)
		if i := int(at / pageSize); i < len(n.now.pages) && n.now.pages[i] != nil {
			p = n.now.pages[i]
		}
		part := p[at%pageSize : min(pageSize, at%pageSize+end-at)]
		read, at = append(read, part...), at+int64(len(part))
	}
	return read
}

func (n *node) truncate(size int64) {
	n.changed = time.Now()
	last := int((size + pageSize - 1) / pageSize)
	if size < n.now.size && last < len(n.now.pages) {
		for i := range n.now.pages[last:] {
			delete(n.fresh, last+i)
		}
		n.now.pages = n.now.pages[:last]
	}
	if size < n.now.size && size%pageSize > 0 && last <= len(n.now.pages) {
		clear(n.writable(last - 1)[size%pageSize:])
	}
	n.now.size = size
}

func (n *node) attributes(a *fuse.Attr) {
	*a = fuse.Attr{Ino: n.number, Mode: n.mode, Size: uint64(n.now.size), Blocks: uint64(n.now.size+511) / 512, Nlink: 1, Blksize: pageSize}
	a.SetTimes(&n.changed, &n.changed, &n.changed)
}
